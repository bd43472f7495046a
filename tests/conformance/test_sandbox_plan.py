"""What a sandbox shows and enforces, as values: no process is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.diagnosis.advice import advise
from conformance.diagnosis.limits import limit_met
from conformance.execution.deadlines import Deadlines
from conformance.execution.fork_servers import own_files
from conformance.sandbox import plan as plans
from conformance.sandbox.attempts import Sandboxes
from conformance.sandbox.cgroups import cgroups, memory_kills
from conformance.sandbox.plan import Plan, clean_environment, completed, ladder
from conformance.sandbox.sandbox import Sandbox
from conformance.sandbox.view import View, view_of
from conformance.sandbox.zygotes import BusyError, RefusedError
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import Location, locate
from pytest_ddp.errors import UsageError
from pytest_ddp.outcomes.failure import describe_outcome
from pytest_ddp.outcomes.outcome import Died


@pytest.fixture
def folders(tmp_path):
    """Make folders below a new one, and return their paths."""

    def make(*names):
        for name in names:
            (tmp_path / name).mkdir(parents=True)
        return [str(tmp_path / name) for name in names]

    return make


def test_the_submission_is_shown_and_no_folder_that_holds_more(folders):
    course, alice, bob, path = folders("course", "course/alice", "course/bob", "packages")
    shown = view_of([alice], uid=1, path=["", course, path], private=[]).shown
    assert {alice, path} <= set(shown)
    assert not {course, bob} & set(shown)


def test_a_folder_with_something_private_is_not_shown_because_modules_are_in_it(folders):
    home, below, cwd = folders("home", "home/.local/lib", "home/work")
    shown = view_of([], uid=1, path=[home, below, cwd], private=[home, cwd]).shown
    assert below in shown
    assert not {home, cwd} & set(shown)


def test_our_packages_are_shown_and_not_the_folder_that_holds_them(folders):
    ours = Path(plans.__file__).parents[1]
    (elsewhere,) = folders("elsewhere")
    shown = view_of([], uid=1, path=[str(ours.parent)], private=[elsewhere]).shown
    assert str(ours) in shown
    assert str(ours.parent) not in shown


def test_links_on_the_way_are_made_again(folders, tmp_path):
    (real,) = folders("real/packages")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").symlink_to(tmp_path / "link")
    view = view_of([str(tmp_path / "other" / "packages")], uid=1, path=[], private=[])
    assert real in view.shown
    assert (str(tmp_path / "link"), "real") in view.links
    assert (str(tmp_path / "other"), str(tmp_path / "link")) in view.links


def test_the_interpreter_is_shown():
    shown = view_of([], uid=1, path=[], private=[]).shown
    for place in (sys.executable, sys.prefix, sys.base_prefix, json.__file__):
        assert any(os.path.realpath(place).startswith(one) for one in shown)


def test_a_module_is_its_package_and_a_file_in_tmp_is_alone(tmp_path, monkeypatch):
    (reference,) = own_files(locate("reference.adapters"))
    assert Path(reference).name == "reference"
    assert own_files(Location("x", "x", "/tmp/x.py", "/tmp", ("/tmp",))) == ("/tmp/x.py",)
    (tmp_path / "here.py").touch()
    monkeypatch.chdir(tmp_path)
    assert own_files(locate("here.py")) == (str(tmp_path), str(tmp_path))


def test_the_environment_is_an_allow_list():
    outer = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AWS_SECRET": "x",
        "PYTHONPATH": "x",
        "HOME": "/root",
        "OMP_NUM_THREADS": "9",
    }
    found = clean_environment(outer)
    assert found == {
        "PATH": "/bin", "LC_ALL": "C", "HOME": "/tmp/home", "TMPDIR": "/tmp", "USER": "submission",
        "LOGNAME": "submission", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip


ALL = Plan(namespaces=True, user_namespace=True, uid=7, limits={"FSIZE": 1}, cgroups={"memory": "x", "pids": "x"})
ALL_WORDS = (
    "own user; user, PID, mount, IPC and network namespaces; no network; 2 GiB /tmp; clean environment; limits on "
    "file size; cgroup: memory and processes"
)


@pytest.mark.parametrize(("plan", "words"), [
    (Plan(), "none; clean environment"),
    (Plan(limits={"AS": 1, "NOFILE": 1}),
     "the user of the grader; clean environment; limits on memory, open files; cgroup: none"),
    (Plan(uid=7, limits={"NPROC": 1}), "own user; clean environment; limits on threads; cgroup: none"),
    (ALL, ALL_WORDS),
])  # fmt: skip
def test_the_report_says_what_is_enforced(plan, words):
    assert plan.enforced == words


def test_a_plan_survives_the_trip_to_a_zygote():
    view = View(("/usr",), (("/bin", "usr/bin"),), (("/etc/hosts", "x"),))
    plan = completed(Plan(namespaces=True, uid=5), view, {"PATH": "x"}, {"pids": "/sys/x"})
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.limits["CORE"] == 0
    assert {"AS", "FSIZE", "NOFILE", "NPROC"} <= plan.limits.keys()


def test_threads_are_limited_only_where_they_are_counted_apart(monkeypatch):
    monkeypatch.setattr(plans, "_linux", lambda: (5, 10))
    assert "NPROC" not in plans.limits(Plan(namespaces=True, user_namespace=True))
    assert "NPROC" in plans.limits(Plan(uid=5))


def test_root_tries_another_user_and_everybody_tries_namespaces_first():
    assert [(plan.namespaces, plan.user_namespace, plan.uid is not None) for plan in ladder(root=True)] == [
        (True, True, True), (True, False, True), (False, False, True), (False, False, False),
    ]  # fmt: skip
    assert [(plan.namespaces, plan.uid) for plan in ladder(root=False)] == [(True, None), (False, None)]


class Refuses:
    """A zygote on a machine that refuses everything."""

    def ask(self, *_):
        raise RefusedError("[Errno 1] unshare: Operation not permitted")


def test_a_sandbox_that_is_required_and_refused_ends_the_grade():
    refused = (
        "this machine does not let the grader make a sandbox: .*unshare: Operation not permitted.*--isolation=auto"
    )
    with pytest.raises(UsageError, match=refused), Sandboxes("require", [Refuses()]).servers([]):
        raise AssertionError("there is none")


VERSION_1 = "4:memory:/box\n3:cpuset:/\n8:pids:/\n0::/\n"


def test_a_busy_machine_is_asked_again_for_the_same_sandbox(monkeypatch):
    asked = []

    class Busy:
        def ask(self, _, plan, *__):
            asked.append(plan.namespaces)
            raise BusyError("[Errno 11] Resource temporarily unavailable")

    monkeypatch.setattr("conformance.sandbox.attempts._PAUSE_SECONDS", 0)
    with pytest.raises(BusyError, match="temporarily"), Sandboxes("auto", (Busy(), Busy())).servers([]):
        pass
    assert asked == [True] * len(asked)
    assert len(asked) > 1


def test_a_cgroup_of_version_1_is_made_below_the_own_one(tmp_path):
    for folder in ("memory/box", "pids"):
        (tmp_path / folder).mkdir(parents=True)
    with cgroups(tmp_path, VERSION_1) as groups:
        assert Path(groups["memory"]).parent == tmp_path / "memory" / "box"
        assert Path(groups["pids"]).parent == tmp_path / "pids"
        assert int(Path(groups["memory"], "memory.limit_in_bytes").read_text()) > 2**20
        assert memory_kills(groups) == 0
        Path(groups["memory"], "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        assert memory_kills(groups) == 2


def test_cgroups_of_judges_that_were_killed_are_removed(tmp_path):
    stale, other = tmp_path / "pids" / "pytest-ddp-99999999-ab", tmp_path / "pids" / f"pytest-ddp-{os.getpid()}-ab"
    for folder in (stale, other):
        folder.mkdir(parents=True)
    with cgroups(tmp_path, VERSION_1):
        assert not stale.exists()
        assert other.exists()


def test_a_cgroup_of_version_2_is_made_beside_the_own_one(tmp_path):
    (tmp_path / "user" / "shell").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    with cgroups(tmp_path, "0::/user/shell\n") as groups:
        assert groups["memory"] == groups["pids"]
        assert Path(groups["memory"]).parent == tmp_path / "user"
        assert Path(groups["pids"], "pids.max").read_text() == "2048"


def test_without_a_writable_cgroup_there_is_none(tmp_path):
    with cgroups(tmp_path, VERSION_1) as groups:
        assert groups == {}


def test_a_deadline_stays_bounded_on_a_loaded_machine():
    assert Deadlines(fastest=1e6, import_seconds=30).of(Scenario()) <= 300 + 60


def test_arguments_and_environment_wait_until_the_zygote_is_forked():
    """The program that `restart` executes has neither of them; `resume` gives them back to the judge."""
    begins = "import conformance.execution.restart as one; one.os.execve = lambda *call: print(call[1][-1], call[2]); "
    run = subprocess.run(
        [sys.executable, "-c", f"{begins} one.restart(['--seed', '12345'])"],
        env={**os.environ, "TOKEN": "secret", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "resume" in run.stdout
    assert "12345" not in run.stdout
    assert "secret" not in run.stdout


@pytest.mark.parametrize(("kind", "message", "words"), [
    ("OSError", "[Errno 28] No space left on device", "private /tmp and /dev/shm of a submission hold 2 GiB each"),
    ("OSError", "[Errno 101] Network is unreachable", "Submissions run without a network (--isolation)"),
    ("gaierror", "[Errno -3] Temporary failure in name resolution", "Submissions run without a network (--isolation)"),
    ("OSError", "[Errno 30] Read-only file system: 'log'", "its own folder is read-only (--isolation)"),
    ("OSError", "[Errno 27] File too large", "may write files of 2 GiB at most"),
    ("RuntimeError", "can't start new thread", "2048 processes and threads together"),
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "2048 processes and threads together"),
    ("OSError", "[Errno 24] Too many open files", "may have 4096 open files"),
    ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", "The memory of a rank is limited"),
    ("ValueError", "no limit", ""),
])  # fmt: skip
def test_a_limit_that_was_met_is_named(kind, message, words):
    assert words in limit_met(kind, message)
    assert bool(words) == bool(advise(kind, message, Scenario(), on_all_ranks=True))


def test_ranks_that_the_cgroup_killed_say_so(tmp_path):
    died = Died(rank=0, seconds=1.0, output="", signal="SIGKILL")
    sandbox = Sandbox(Plan(cgroups={"memory": str(tmp_path)}))
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    assert sandbox.explained([died]) == [died]
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    (explained,) = sandbox.explained([died])
    assert "killed by SIGKILL: the memory that the ranks of a submission may have" in describe_outcome(explained)
    assert sandbox.explained([died]) == [died]
