"""Ranks in a sandbox: what they see and reach, and what is left when the judge or a submission has ended."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import hypothesis
import psutil
import pytest

from conformance.execution.fork_servers import ranks_from
from conformance.sandbox import view
from conformance.submissions.location import locate
from pytest_ddp.outcomes.outcome import Died, Returned, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import EXIT_SECONDS

ADAPTERS = "x = 1"
SECONDS = 60


def ask(ranks, target, asked=b"", size=1):
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    outcomes = ranks.run(World(size), f"sandbox_targets:{target}", body, timeout=SECONDS)
    assert all(isinstance(outcome, Returned) for outcome in outcomes), outcomes
    return json.loads(outcomes[0].body or b"null")


def test_ranks_see_their_submission_and_neither_others_nor_results_nor_the_users_home(
    sandboxed, submit, tmp_path, monkeypatch
):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    own = submit(ADAPTERS)
    own.chmod(0o700)
    (tmp_path / "results").mkdir()
    home = Path.home()
    paths = [str(own), str(own / "adapters.py"), str(tmp_path / "results"), str(home / ".bashrc"), "/etc/shadow"]
    paths += [str(Path.cwd() / "tests" / "conformance"), "/tmp", "/dev/shm", sys.prefix]
    with ranks_from(sandboxed, locate(str(own))) as ranks:
        seen = ask(ranks, "look", {"paths": paths})
    assert seen["seen"] == [str(own), str(own / "adapters.py"), "/tmp", "/dev/shm", sys.prefix]
    assert seen["writable"] == ["/tmp", "/dev/shm"]
    assert seen["home"] == []
    assert seen["cwd"] == "/tmp/work"
    assert seen["addresses"] == ["lo"]
    assert seen["pids"] <= 5
    assert (seen["uid"] == os.getuid()) == (os.getuid() != 0)
    assert "TOKEN" not in seen["environment"]
    assert seen["environment"]["LANG"] == "C.UTF-8"
    assert (seen["environment"]["HOME"], seen["environment"]["TMPDIR"]) == ("/tmp/home", "/tmp")


def test_ranks_see_no_references_among_installed_packages(sandboxed, monkeypatch):
    installed = Path(hypothesis.__file__).parent
    monkeypatch.setattr(view, "_SOLUTIONS", str(installed))
    with ranks_from(sandboxed) as ranks:
        seen = ask(ranks, "look", {"paths": [str(installed), str(installed / "__init__.py"), psutil.__file__]})
    assert seen["seen"] == [str(installed), psutil.__file__]
    assert seen["writable"] == []


def test_ranks_reach_neither_the_judge_nor_the_network(sandboxed):
    with socket.create_server(("127.0.0.1", 0)) as server, ranks_from(sandboxed) as ranks:
        said = ask(ranks, "attack", {"pid": os.getpid(), "port": server.getsockname()[1]})
    assert said == {
        "signal": "ProcessLookupError",
        "first": "done",  # the kernel takes it for no one: the first process has no handler
        "connect": "ConnectionRefusedError",
        "network": "[Errno 101] Network is unreachable",
        "memory": "PermissionError",
        "descriptors": "PermissionError",
        "mount": "[Errno 30] Read-only file system: '/usr/written'",
    }


def test_a_submission_finds_nothing_of_the_one_before_it(sandboxed):
    for _ in range(2):
        with ranks_from(sandboxed) as ranks:
            assert ask(ranks, "leave_files") == []
            assert ask(ranks, "leave_files") == ["left"] * 3


def test_ranks_share_a_folder_that_is_gone_afterwards(sandboxed):
    with ranks_from(sandboxed) as ranks:
        for in_memory in (False, True):
            with ranks.sandbox.folder(in_memory=in_memory) as folder:
                ask(ranks, "write_shared", folder.encode(), size=2)
            assert ask(ranks, "look", {"paths": [folder]})["seen"] == []


def test_a_rank_that_hangs_shows_its_stack_and_one_that_dies_its_signal(sandboxed):
    with ranks_from(sandboxed) as ranks:
        (hung,) = ranks.run(World(1), "sandbox_targets:stand_still", timeout=1)
        (died,) = ranks.run(World(1), "sandbox_targets:end_by_signal", timeout=SECONDS)
    assert isinstance(hung, TimedOut)
    assert "in stand_still" in hung.stack
    assert isinstance(died, Died)
    assert died.signal == "SIGKILL"


PROGRAM = """
import sys
from conformance.execution.fork_servers import fork_servers, ranks_from
from pytest_ddp.planning.world import World
with fork_servers("require") as servers, ranks_from(servers) as ranks:
    ranks.run(World(2), "sandbox_targets:look", b"{}", timeout=60)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.usefixtures("sandboxed")
def test_no_process_outlives_a_judge_that_is_killed():
    with_path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    judge = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=with_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert judge.stdout.readline() == "ready\n"
    started = psutil.Process(judge.pid).children(recursive=True)
    assert len(started) >= 2 + 1 + 2 + 2, "zygotes, the first process, fork servers, ranks"
    judge.kill()
    judge.communicate()
    _, left = psutil.wait_procs(started, EXIT_SECONDS)
    assert not left


WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
GRADES = [sys.executable, "-m", "conformance", "examples/correct", "--components", "naive_ddp", "--max-examples", "1"]


@pytest.mark.long
@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(("isolation", "code", "says"), [
    ("require", 2, "--isolation=require: this machine does not let the grader make a sandbox: [Errno 28] unshare:"),
    ("auto", 0, "isolation: the user of the grader; clean environment"),
])  # fmt: skip
def test_a_machine_without_namespaces(isolation, code, says, tmp_path):
    alone = ["unshare", "-U", "-r", "sh", "-c", WITHOUT_NAMESPACES, "sh"]
    run = subprocess.run(
        [*alone, *GRADES, "--core", "--isolation", isolation, "--repro-dir", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == code, run.stderr
    assert says in run.stdout + run.stderr
