"""Grades four submissions on two Ray nodes, as on this machine: the same gradebook, also if a node or the grade dies.

The nodes are processes of this machine. Their workers get the submissions as bytes.
"""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ray = pytest.importorskip("ray", reason="grading on Ray nodes needs the package ray (pytest-ddp[ray])")
from ray.cluster_utils import Cluster  # noqa: E402  only if there is Ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

RIGHT = """
def ddp_overhead(s, w, o, n_b): return s / w / n_b + n_b * o
def optimal_bucket_size(s, w, o): return (s * w * o) ** 0.5
"""
OPTIONS = ("--components", "overhead_model", "--max-examples", "2", "--seed", "1", "--core")
ENDED_SECONDS = 60  # a node that was killed must be found dead by its workers; a loaded machine is slow


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Four submissions: right, wrong, one that exits, and a right archive."""
    folder = tmp_path_factory.mktemp("ray") / "course"
    texts = {"ada": RIGHT, "bob": RIGHT.replace("n_b * o", "o"), "eve": "import os\nos._exit(0)\n"}
    for name, text in texts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "adapters.py").write_text(text, encoding="utf-8")
    with zipfile.ZipFile(folder / "dan.zip", "w") as archive:
        archive.writestr("dan/adapters.py", RIGHT)
    return folder


def graded(course: Path, out: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start a grade; its results go to a folder beside the course, and what it tells to a file there."""
    asked = ["grade", str(course), "--out", str(course.parent / out), *OPTIONS, *options]
    with (course.parent / f"{out}.txt").open("ab") as told:
        return subprocess.Popen([sys.executable, "-m", "conformance", *asked], stderr=told, stdout=told)


def gradebook(course: Path, out: str) -> bytes:
    return (course.parent / out / "gradebook.csv").read_bytes()


@pytest.fixture(scope="module")
def whole(course):
    """The gradebook of a grade on this machine."""
    assert graded(course, "local", "--jobs", "2").wait() == 0
    return gradebook(course, "local")


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of which the head runs nothing; all that it started has ended afterwards."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def on(cluster: Cluster) -> tuple[str, ...]:
    return "--executor", "ray", "--ray-address", cluster.address


def raylet(node: object) -> psutil.Process:
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def wait_for(condition: Callable[[], object], run: "subprocess.Popen[bytes]") -> None:
    """Wait until a condition holds, while a grade runs."""
    while not condition():
        assert run.poll() is None, "the grade has ended too early"
        time.sleep(0.1)


def without_times(report: dict) -> str:
    for one in report["submissions"]:
        for component in one["components"].values():
            for check in component.get("checks", ()):
                check.pop("seconds", None)
    return json.dumps(report)


def test_two_nodes_give_the_grades_of_this_machine(course, whole, cluster):
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    assert graded(course, "ray", *on(cluster)).wait() == 0
    assert gradebook(course, "ray") == whole
    told = (course.parent / "ray.txt").read_text()
    assert "4 of 4: " in told
    assert "4 submissions, 1 of them for a person to look at\n" in told
    for name in ("ada", "bob", "eve", "dan"):
        there, here = (json.loads((course.parent / out / name / "report.json").read_text()) for out in ("ray", "local"))
        assert without_times(there) == without_times(here).replace("/local/", "/ray/")
    script = next((course.parent / "ray" / "bob").rglob("overhead_model-*.py"))
    shown = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert shown.returncode == 1, shown


def test_a_node_that_dies_costs_a_retry_and_leaves_nothing_behind(course, whole, cluster):
    node = cluster.add_node(num_cpus=1)
    run = graded(course, "killed", *on(cluster))
    wait_for(lambda: list(course.parent.glob("killed/*/log.txt")), run)
    tree = raylet(node).children(recursive=True)
    cluster.add_node(num_cpus=1)
    cluster.remove_node(node, allow_graceful=False)
    assert not psutil.wait_procs(tree, ENDED_SECONDS)[1], "a grader or its ranks outlive their node"
    assert run.wait() == 0
    assert gradebook(course, "killed") == whole
    told = (course.parent / "killed.txt").read_text()
    assert " is graded again: " in told
    assert " was lost: " in told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_grade_that_is_cut_off_is_resumed(course, whole, cluster, number, code):
    node, out = cluster.add_node(num_cpus=1), f"cut_off_{number}"
    run = graded(course, out, *on(cluster))
    wait_for(lambda: list(course.parent.glob(f"{out}/*/report.json")), run)
    graders = [one for one in raylet(node).children(recursive=True) if "conformance" in " ".join(one.cmdline())]
    assert graders
    run.send_signal(number)
    assert run.wait(ENDED_SECONDS) == code
    assert not psutil.wait_procs(graders, ENDED_SECONDS)[1], "a grader outlives the grade"
    before = {path: path.stat().st_mtime_ns for path in course.parent.glob(f"{out}/*/part-*.json")}
    assert graded(course, out, *on(cluster), "--resume").wait() == 0
    assert gradebook(course, out) == whole
    assert "submissions are graded already" in (course.parent / f"{out}.txt").read_text()
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items()), "what is graded stays"


def test_a_worker_that_is_killed_takes_its_ranks_along(course, whole, cluster):
    node = cluster.add_node(num_cpus=1)
    run = graded(course, "worker", *on(cluster))
    wait_for(lambda: list(course.parent.glob("worker/*/log.txt")), run)
    (worker,) = (one for one in raylet(node).children() if "_graded_on_node" in "".join(one.cmdline()))
    tree = worker.children(recursive=True)
    os.kill(worker.pid, signal.SIGKILL)
    assert not psutil.wait_procs(tree, ENDED_SECONDS)[1], "a grader or its ranks outlive their worker"
    assert run.wait() == 0
    assert gradebook(course, "worker") == whole
