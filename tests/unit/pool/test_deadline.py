"""After a failure the other ranks get some time, and more of it on a busy machine."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ddp.outcomes.outcome import Raised
from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.rank_process import RankProcess

FAILED = Raised(rank=0, seconds=0.0, kind="ValueError", message="", traceback="")
on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@dataclass
class Clock:
    """Stands in for the module `time`."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Peer:
    """Stands in for a rank that still runs."""

    rank: int = 1
    collectives_entered: int = 0
    cpu_seconds: float = 50.0
    is_busy: bool = False
    is_raising: bool = False


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pytest_ddp.pool.deadline.time", clock)
    return clock


def after_a_failure(peers, *, ends_at=100.0):
    deadline = Deadline(peers, ends_at, grace=1.0)
    deadline.add_outcome(Peer(0), FAILED)
    return deadline


def test_ranks_that_sleep_are_ended_after_the_grace(clock):
    peers = [Peer()]
    deadline = after_a_failure(peers)
    assert not deadline.is_over()
    clock.now = 1.0
    assert deadline.is_over()


def test_a_busy_rank_gets_as_much_cpu_time(clock):
    peers = [Peer(1), Peer(2, is_busy=True)]
    deadline = after_a_failure(peers)
    clock.now, peers[1].cpu_seconds = 1.0, 50.25
    assert not deadline.is_over()
    assert 0 < deadline.seconds < 1  # not a busy loop
    clock.now = 20.0  # it has waited for a CPU all the time
    assert not deadline.is_over()
    clock.now, peers[1].cpu_seconds = 21.0, 51.0
    assert deadline.is_over()


def test_a_rank_that_announced_an_exception_is_waited_for(clock):
    peers = [Peer(1, is_raising=True), Peer(2)]
    deadline = after_a_failure(peers)
    clock.now = 1.0
    assert not deadline.is_over()
    peers.pop(0)  # its answer has come
    clock.now += deadline.seconds
    assert deadline.is_over()


def test_the_deadline_ends_busy_and_raising_ranks_too(clock):
    peers = [Peer(1, is_busy=True), Peer(2, is_raising=True)]
    deadline = after_a_failure(peers, ends_at=1.5)
    clock.now = 1.0
    assert not deadline.is_over()
    clock.now = 1.5
    assert deadline.is_over()


def test_a_rank_that_could_run_and_gets_no_core_is_waited_for_but_not_for_ever(clock):
    starved = Peer(is_busy=True)
    deadline = Deadline([starved], 100.0, grace=1.0, extra=2.0)
    ends = []
    for clock.now in (100.0, 100.5, 101.0, 101.5):
        starved.cpu_seconds += 0.1  # a fifth of a core
        ends.append(deadline.is_over())
    clock.now = 102.0
    assert (ends, deadline.is_over()) == ([False] * 4, True)


@pytest.mark.parametrize("uses", [0.2, 0.5])
def test_a_rank_that_computes_for_ever_is_ended_after_one_sample(clock, uses):
    endless = Peer(is_busy=True)
    deadline = Deadline([endless], 100.0, grace=1.0, extra=200.0)
    clock.now = 100.0
    assert not deadline.is_over()
    clock.now, endless.cpu_seconds = 100.5, endless.cpu_seconds + uses
    assert deadline.is_over()


def test_ranks_that_wait_are_ended_at_the_deadline_however_slow_the_machine_is(clock):
    deadline = Deadline([Peer(), Peer(2)], 100.0, grace=1.0, extra=200.0)
    clock.now = 100.0
    assert deadline.is_over()


def test_without_a_failure_only_the_deadline_counts(clock):
    peers = [Peer(is_busy=True)]
    deadline = Deadline(peers, 100.0, grace=1.0)
    clock.now = 99.0
    assert not deadline.is_over()
    clock.now = 100.0
    assert deadline.is_over()


def a_process(pid: int) -> RankProcess:
    process = RankProcess.__new__(RankProcess)
    process.pid = pid
    return process


@on_linux
def test_a_process_is_busy_or_sleeps():
    code = "import sys\nprint(flush=True)\nwhile sys.argv[1] == 'busy':\n    pass\nsys.stdin.read()"
    for what in ("busy", "asleep"):
        with subprocess.Popen([sys.executable, "-c", code, what], stdin=-1, stdout=-1) as started:
            started.stdout.readline()
            process = a_process(started.pid)
            while process.is_busy is not (what == "busy"):  # it may need a moment after its line
                pass
            started.send_signal(signal.SIGKILL)


@on_linux
def test_cpu_time_is_in_seconds():
    used = os.times()
    measured = a_process(os.getpid()).cpu_seconds
    assert used.user + used.system - 0.1 <= measured <= sum(os.times()[:2]) + 0.1


def test_a_process_that_has_ended_is_not_busy():
    process = a_process(2**22 + 1)  # larger than any that Linux gives
    assert not process.is_busy
    assert process.cpu_seconds == 0.0
