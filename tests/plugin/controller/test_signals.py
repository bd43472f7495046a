"""However pytest ends, its ranks end too; after Ctrl-C it reports what they were doing."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect
import psutil
import pytest
from survivors import survivors

SUITE = """
import os, pathlib, threading
import pytest
from pytest_ddp import distributed

@distributed(world_size=3)
def test_before(ddp):
    assert ddp.rank != 1

@distributed
def test_hang(ddp):
    import torch.distributed as dist

    work = dist.barrier(async_op=True) if ddp.rank == 0 else threading.Event()
    print(f"hanging:{os.getpid()}", flush=True)
    pathlib.Path(__file__).with_name(f"hanging{ddp.rank}").touch()
    work.wait()

@distributed
def test_never():
    print("never")
"""
# Short sleeps: CPython misses a signal that comes just before an endless wait (measured: 3 of 33000).
SLOW_TO_LEAVE = """
import time

def pytest_sessionfinish(session):
    if not session.config.pluginmanager.has_plugin("ddp-rank"):
        print("leaving", flush=True)
        while True:
            time.sleep(0.1)
"""


@contextmanager
def hanging_run(pytester, *args: str) -> Iterator[tuple[pexpect.spawn, list[psutil.Process]]]:
    """Run the suite on a terminal until two ranks hang; all processes below pytest must end with the block."""
    pytester.makepyfile(test_suite=SUITE)
    command = ["-m", "pytest", "-s", "-p", "no:cacheprovider", *args]
    run = pexpect.spawn(
        sys.executable,
        command,
        cwd=str(pytester.path),
        encoding="utf-8",
        timeout=240,
        dimensions=(24, 200),
        preexec_fn=heed_signals,
    )
    try:
        for _ in range(2):
            run.expect(r"hanging:\d+")
        below = psutil.Process(run.pid).children(recursive=True)
        assert len(below) >= 3, "two ranks and their fork server"
        yield run, below
        assert not survivors(below)
    finally:
        run.close(force=True)


def heed_signals() -> None:
    """Restore the signal handlers that a shell or nohup switches off for commands in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def end_of(run: pexpect.spawn) -> list[str]:
    """Wait for the end of the run; return the rest of its output."""
    text: str = run.read()
    run.close()
    return text.splitlines()


def test_an_interrupt_ends_the_run_with_reports_and_with_what_the_ranks_were_doing(pytester):
    with hanging_run(pytester, "-k", "test_before or test_hang or test_never") as (run, _):
        run.sendintr()
        said = pytest.LineMatcher(end_of(run))
    assert run.exitstatus == pytest.ExitCode.INTERRUPTED
    said.fnmatch_lines(
        [
            "*FAILURES*",
            "rank 1 of 3 (gloo, cpu) raised AssertionError: *",
            "*interrupted: test_suite.py::test_hang*",
            "rank 1 of 2 (gloo, cpu) was still running when the run was interrupted, and was stopped; it entered*",
            "  rank 0: was still running when the run was interrupted, and was stopped; *barrier #1*",
            "---- rank 1: Python stacks ----",
            "*in test_hang",
            "---- rank 0: Python stacks ----",
            "*in test_hang",
            "*KeyboardInterrupt*",
            "*1 failed*",
        ]
    )
    # On the line of rank 0 if it waits already, else on a line of its own.
    assert "barrier #1, which rank 1 never entered" in said.str()
    said.no_fnmatch_line("never")


def test_a_second_interrupt_during_shutdown_leaves_nothing(pytester):
    pytester.makeconftest(SLOW_TO_LEAVE)
    with hanging_run(pytester, "-k", "test_before or test_hang") as (run, below):
        assert len(below) == 4, "rank 2 of the first test is idle, and stays so after the first interrupt"
        run.sendintr()
        run.expect("leaving")
        run.sendintr()
        end_of(run)
    assert run.exitstatus != 0


@pytest.mark.long
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM", "the terminal is closed"])
def test_nothing_survives_the_end_of_pytest(pytester, ending):
    with hanging_run(pytester, "-k", "test_hang") as (run, _):
        if ending in signal.Signals.__members__:
            run.kill(signal.Signals[ending])
        else:
            run.ptyproc.fileobj.close()  # the kernel sends SIGHUP
            run.ptyproc.wait()


@pytest.mark.parametrize(
    "ending", ["SIGKILL", *(pytest.param(name, marks=pytest.mark.long) for name in ("SIGTERM", "SIGINT"))]
)
def test_nothing_survives_the_end_of_pytest_under_xdist(pytester, ending):
    pytester.makepyfile(test_suite=SUITE)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "-k", "test_hang"]
    run = psutil.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL, preexec_fn=heed_signals)
    while len(list(pytester.path.glob("hanging?"))) < 2:
        assert run.poll() is None
        time.sleep(0.1)
    below = run.children(recursive=True)
    assert len(below) >= 4, "a worker, two ranks and their fork server"
    run.send_signal(signal.Signals[ending])
    assert not survivors([run, *below])
