"""Ranks get some time once another one has failed, and what a busy machine takes of it besides."""

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
on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells")


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
    processor_seconds: float = 50.0
    is_busy: bool = False
    is_raising: bool = False


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pytest_ddp.pool.deadline.time", clock)
    return clock


def after_a_failure(peers, *, ends_at=100.0):
    deadline = Deadline(ends_at, grace=1.0)
    deadline.add_outcome(Peer(0), FAILED, peers)
    return deadline


def test_the_grace_is_over_for_ranks_that_sleep(clock):
    peers = [Peer()]
    deadline = after_a_failure(peers)
    assert not deadline.is_over(peers)
    clock.now = 1.0
    assert deadline.is_over(peers)


def test_a_rank_that_is_busy_gets_as_much_processor_time(clock):
    peers = [Peer(1), Peer(2, is_busy=True)]
    deadline = after_a_failure(peers)
    clock.now, peers[1].processor_seconds = 1.0, 50.25
    assert not deadline.is_over(peers)
    assert 0 < deadline.seconds < 1  # it is not looked at all the time
    clock.now = 20.0  # it has waited for a processor ever since
    assert not deadline.is_over(peers)
    clock.now, peers[1].processor_seconds = 21.0, 51.0
    assert deadline.is_over(peers)


def test_a_rank_that_is_about_to_say_why_it_failed_is_waited_for(clock):
    peers = [Peer(1, is_raising=True), Peer(2)]
    deadline = after_a_failure(peers)
    clock.now = 1.0
    assert not deadline.is_over(peers)
    peers.pop(0)  # it has said so
    clock.now += deadline.seconds
    assert deadline.is_over(peers)


def test_the_deadline_holds_all_the_same(clock):
    peers = [Peer(1, is_busy=True), Peer(2, is_raising=True)]
    deadline = after_a_failure(peers, ends_at=1.5)
    clock.now = 1.0
    assert not deadline.is_over(peers)
    clock.now = 1.5
    assert deadline.is_over(peers)


def test_no_failure_no_grace(clock):
    peers = [Peer(is_busy=True)]
    deadline = Deadline(100.0, grace=1.0)
    clock.now = 99.0
    assert not deadline.is_over(peers)
    clock.now = 100.0
    assert deadline.is_over(peers)


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
            while process.is_busy is not (what == "busy"):  # right after its line, one may still be on its way
                pass
            started.send_signal(signal.SIGKILL)


@on_linux
def test_processor_time_is_told_in_seconds():
    used = os.times()
    told = a_process(os.getpid()).processor_seconds
    assert used.user + used.system - 0.1 <= told <= sum(os.times()[:2]) + 0.1


def test_a_process_that_is_gone_is_not_busy():
    process = a_process(2**22 + 1)  # larger than any that Linux gives
    assert not process.is_busy
    assert process.processor_seconds == 0.0
