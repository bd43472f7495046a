"""`launch` runs a function on every rank, in each way to start ranks; when a rank fails, no process is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launched
import psutil
import pytest
import torch.distributed as dist
from survivors import survivors

from reference.communication.launch import in_job, launch

STARTS = ["spawn", "processes"]
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _importable_from_fresh_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{Path(launched.__file__).parent}")


def places(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


def both_wrote(sum_: int) -> list[str]:
    return [f"{rank} of 2, local {rank} on cpu, sum {sum_}, gloo" for rank in (0, 1)]


@pytest.mark.parametrize("start", [pytest.param("spawn", marks=pytest.mark.long), "processes"])
def test_every_rank_runs_the_function_inside_a_group(start: str, tmp_path: Path) -> None:
    launch(launched.write_place, 2, tmp_path, 21, start=start, backend="gloo")
    assert places(tmp_path) == both_wrote(42)


@pytest.mark.long
def test_the_ranks_of_torchrun_are_used(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\nimport launched\nfrom reference.communication.launch import launch\n"
        "launch(launched.write_place, None, Path(__file__).parent / 'places', 21, backend='gloo')\n"
    )
    (tmp_path / "places").mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    subprocess.run(torchrun, check=True, timeout=60)
    assert places(tmp_path / "places") == both_wrote(42)


def test_in_a_job_the_function_runs_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not in_job()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert in_job()
    launch(launched.write_place, None, tmp_path, 5, backend="gloo")
    assert places(tmp_path) == ["0 of 1, local 0 on cpu, sum 5, gloo"]
    assert not dist.is_initialized()


def test_a_slurm_step_is_a_job_but_its_batch_script_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert not in_job()
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node1")
    assert in_job()
    with pytest.raises(ValueError, match="world size 2 differs from this job's 4 ranks: leave it out, or start 2"):
        launch(launched.fail_on_rank_1, 2)


@pytest.mark.parametrize("world_size", [None, 0])
def test_outside_a_job_there_must_be_a_world_size(world_size: int | None) -> None:
    message = f"world size {world_size}: outside a torchrun job, pass the number of ranks, 1 or more"
    with pytest.raises(ValueError, match=message):
        launch(launched.fail_on_rank_1, world_size)


@pytest.mark.parametrize("start", STARTS)
def test_a_function_that_cannot_be_imported_is_refused_by_pickle(start: str) -> None:
    with pytest.raises(Exception, match=r"(?i)can't (get|pickle)|local object"):
        launch(lambda: None, 2, start=start)


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_the_first_failure_comes_before_the_failures_that_it_causes(start: str) -> None:
    with pytest.raises(RuntimeError) as failure:
        launch(launched.fail_on_rank_1, 2, start=start, backend="gloo")
    first = str(failure.value).split("\n\n\n")[0]
    assert "ValueError: rank 1 has had enough" in first
    assert "fail_on_rank_1" in first
    assert "Connection" not in first


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("spawn", "process 1 terminated with exit code 3"),
        ("processes", r"^rank 1 ended before it was done, with exit code 3 \(below 0: a signal\)$"),
    ],
)
def test_when_a_rank_dies_the_others_are_killed(start: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        launch(launched.stop_on_rank_1_while_rank_0_never_ends, 2, start=start, backend="gloo")
    left = [child for child in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
    assert not left


@contextmanager
def ranks_that_never_end(folder: Path, start: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that launches two ranks, each of which writes its pid and stays."""
    program = folder / "program.py"
    program.write_text(
        "import signal\nfrom pathlib import Path\nimport launched\nfrom reference.communication.launch import launch\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
        f"    launch(launched.write_pid_and_never_end, 2, Path({str(folder)!r}), start={start!r}, backend='gloo')\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stderr=subprocess.DEVNULL) as parent:
        yield parent
        parent.wait(timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=lambda ending: ending.name)
def test_ranks_end_with_the_process_that_started_them(start: str, ending: signal.Signals, tmp_path: Path) -> None:
    with ranks_that_never_end(tmp_path, start) as parent:
        while len(found := list(tmp_path.glob("*.pid"))) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
        ranks = [psutil.Process(int(path.stem)) for path in found]
        os.kill(parent.pid, ending)
    assert not survivors(ranks)


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_ranks_that_are_still_starting_end_too(start: str, tmp_path: Path) -> None:
    with ranks_that_never_end(tmp_path, start) as parent:
        while len(started := psutil.Process(parent.pid).children()) < 2:
            assert parent.poll() is None
            time.sleep(0.01)
        parent.kill()
    assert not survivors(started)
    assert not list(tmp_path.glob("*.pid"))
