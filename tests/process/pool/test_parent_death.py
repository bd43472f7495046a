"""However the controller ends, its fork server, its ranks and their children end too."""

import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
import rank_targets
from survivors import survivors

from pytest_ddp.errors import LaunchError
from pytest_ddp.outcomes.outcome import Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import ForkLauncher, SpawnLauncher, launcher_for
from pytest_ddp.pool.pool import RankPool

# Without torch's compiler, which nothing here needs, ranks start sooner.
PRELOAD = ("pytest_ddp.observed.recording.process_group",)
FORK = f"ForkLauncher({PRELOAD})"
CONTROLLER = """
import sys
sys.path[:] = {path!r}
from pytest_ddp.errors import LaunchError
from pytest_ddp.pool.launcher import ForkLauncher, SpawnLauncher
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.planning.world import World
ranks = RankPool({launcher})
outcomes = ranks.run(World(2), "rank_targets:leaves_a_child", timeout=60)
print(*(outcome.body.decode() for outcome in outcomes), flush=True)
sys.stdin.read()
"""


def processes(ids: str) -> list[psutil.Process]:
    return [psutil.Process(int(pid)) for pid in ids.split()]


@pytest.mark.parametrize(
    ("launcher", "ending"),
    [(FORK, signal.SIGKILL), (FORK, signal.SIGTERM), ("SpawnLauncher()", signal.SIGKILL)],
    ids=["fork-SIGKILL", "fork-SIGTERM", "spawn-SIGKILL"],
)
def test_nothing_outlives_the_controller(launcher, ending):
    code = CONTROLLER.format(path=sys.path, launcher=launcher)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        below = processes(run.stdout.readline()) + psutil.Process(run.pid).children(recursive=True)
        run.send_signal(ending)
        run.wait()
    if launcher == "SpawnLauncher()":  # only a fork server adopts the children of ranks
        below = [process for process in below if process.is_running() and process.name() != "sleep"]
    try:
        assert not survivors(below)
    finally:
        kill_sleepers()


WITHOUT_PRCTL = """
import types
import pytest_ddp.pool.parent_death
pytest_ddp.pool.parent_death.sys = types.SimpleNamespace(platform="darwin")
pytest_ddp.pool.parent_death._prctl = None  # calling it fails
"""
BUSY_CONTROLLER = """
import sys
sys.path[:] = {path!r}
from pytest_ddp.pool.launcher import SpawnLauncher
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.planning.world import World
RankPool(SpawnLauncher(), capture=False).run(World(1), "rank_targets:says_its_id_and_hangs", timeout=600)
"""


def test_without_prctl_a_busy_rank_ends_with_its_controller_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PRCTL)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_CONTROLLER.format(path=sys.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as run:
        assert run.stdout is not None
        (rank,) = processes(run.stdout.readline())
        run.kill()
        run.wait()
    assert not survivors([rank])


def kill_sleepers() -> None:
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["/bin/sleep", "1000"]:
            process.kill()


def test_the_children_of_a_rank_end_with_it(ranks):
    with ranks.fresh() as own:
        outcomes = own.run(World(2), "rank_targets:leaves_a_child", timeout=60)
        left = [process for outcome in outcomes for process in processes(outcome.body.decode())]
    assert not survivors(left)


def test_closing_the_launcher_ends_the_server_at_once():
    launcher = ForkLauncher(PRELOAD)
    with RankPool(launcher) as pool:
        outcomes = pool.run(World(2), f"{rank_targets.__name__}:process_id", timeout=60)
        ranks = [psutil.Process(int(outcome.body)) for outcome in outcomes if isinstance(outcome, Returned)]
        server = ranks[0].parent()
        assert server is not None
        assert server.num_threads() == 1, "a process with threads must not fork"
        launcher.close()
        assert not server.is_running()
        assert not any(rank.is_running() for rank in ranks)


def test_a_fork_server_that_died_is_replaced():
    launcher = ForkLauncher(PRELOAD)
    with RankPool(launcher) as pool:
        (first,) = pool.run(World(1), f"{rank_targets.__name__}:process_id", timeout=60)
        assert isinstance(first, Returned)
        rank = psutil.Process(int(first.body))
        server = rank.parent()
        assert server is not None
        server.kill()
        assert not survivors([server, rank])
        outcomes = pool.run(World(2), f"{rank_targets.__name__}:all_reduce", timeout=60)
        assert [outcome.body for outcome in outcomes if isinstance(outcome, Returned)] == [b"8", b"8"]
    launcher.close()


def test_a_server_that_still_imports_modules_is_killed():
    launcher = ForkLauncher()
    launcher.start_server()
    server = launcher._server
    assert server is not None
    launcher.close()
    assert server.returncode == -signal.SIGKILL


def test_the_answer_to_an_interrupted_start_is_not_taken_for_the_next_answer(monkeypatch):
    launcher = ForkLauncher(PRELOAD)
    receive = launcher._receive

    def interrupted(key: str, seconds: float) -> dict[str, Any]:
        if key == "forked":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return receive(key, seconds)

    with RankPool(launcher) as pool:
        monkeypatch.setattr(launcher, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.run(World(1), f"{rank_targets.__name__}:process_id", timeout=60)
        outcomes = pool.run(World(2), f"{rank_targets.__name__}:all_reduce", timeout=60)
        assert [outcome.body for outcome in outcomes if isinstance(outcome, Returned)] == [b"8", b"8"]
    launcher.close()


def test_a_fork_that_fails_says_why_and_keeps_the_other_ranks():
    launcher = ForkLauncher((*PRELOAD, "few_forks"))
    with RankPool(launcher) as pool:
        before = pool.run(World(2), f"{rank_targets.__name__}:process_id", timeout=60)
        with pytest.raises(LaunchError, match=r"cannot fork another process \(.*temporarily unavailable\): end other"):
            pool.run(World(3), f"{rank_targets.__name__}:process_id", timeout=60)
        again = pool.run(World(3), f"{rank_targets.__name__}:process_id", timeout=60)
        first, second = (outcome.body for outcome in before if isinstance(outcome, Returned))
        assert [outcome.body for outcome in again if isinstance(outcome, Returned)][:2] == [first, second]
    launcher.close()


def test_a_server_that_cannot_import_a_module_says_so(capfd):
    launcher = ForkLauncher(preload=("no_such_module",))
    with RankPool(launcher) as pool, pytest.raises(LaunchError, match="the fork server ended; its own error output"):
        pool.run(World(1), f"{rank_targets.__name__}:process_id", timeout=60)
    launcher.close()
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capfd.readouterr().err


def test_cuda_gets_fresh_interpreters_and_cpu_the_fork_server():
    assert isinstance(launcher_for("cuda"), SpawnLauncher)
    assert launcher_for("cpu") is launcher_for("cpu")
    assert isinstance(launcher_for("cpu"), ForkLauncher) == (sys.platform == "linux")


def test_spawned_ranks_work_like_forked_ones():
    launcher = SpawnLauncher()
    with RankPool(launcher) as pool:
        outcomes = pool.run(World(2), f"{rank_targets.__name__}:all_reduce", timeout=60)
        assert [outcome.body for outcome in outcomes if isinstance(outcome, Returned)] == [b"8", b"8"]
        pids = [
            int(o.body) for o in pool.run(World(2), "rank_targets:process_id", timeout=60) if isinstance(o, Returned)
        ]
    launcher.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert os.getpid() not in pids
