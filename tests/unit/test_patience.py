"""Ranks get some time once another one has failed; what a busy machine takes of it is given back."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ddp.member import Member
from pytest_ddp.outcome import Raised
from pytest_ddp.patience import Patience

FAILED = Raised(rank=0, seconds=0.0, kind="ValueError", message="", traceback="")


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
    entered: int = 0
    waited_for_processor: float = 50.0
    is_reporting: bool = False


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pytest_ddp.patience.time", clock)
    return clock


def after_a_failure(peers, *, deadline=100.0):
    patience = Patience(deadline, grace=1.0)
    patience.hear(Peer(0), FAILED, peers)
    return patience


def test_the_grace_is_over_for_a_rank_that_had_it(clock):
    peers = [Peer()]
    patience = after_a_failure(peers)
    assert not patience.is_over(peers)
    clock.now = 1.0
    assert patience.is_over(peers)


def test_a_rank_that_waited_for_a_processor_gets_as_much_more(clock):
    peers = [Peer(1), Peer(2)]
    patience = after_a_failure(peers)
    clock.now, peers[1].waited_for_processor = 1.0, 50.75
    assert not patience.is_over(peers)
    assert patience.seconds == 0.75
    clock.now = 1.75
    assert patience.is_over(peers)


def test_a_rank_that_is_about_to_say_why_it_failed_is_waited_for(clock):
    peers = [Peer(1, is_reporting=True), Peer(2)]
    patience = after_a_failure(peers)
    clock.now = 1.0
    assert not patience.is_over(peers)
    peers.pop(0)  # it has said so
    clock.now += patience.seconds
    assert patience.is_over(peers)


def test_the_deadline_holds_all_the_same(clock):
    peers = [Peer()]
    patience = after_a_failure(peers, deadline=1.5)
    clock.now, peers[0].waited_for_processor = 1.5, 51.5
    assert patience.is_over(peers)


def test_no_failure_no_grace(clock):
    peers = [Peer()]
    patience = Patience(100.0, grace=1.0)
    clock.now = 99.0
    assert not patience.is_over(peers)
    clock.now, peers[0].waited_for_processor = 100.0, 90.0
    assert patience.is_over(peers)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells")
def test_how_long_a_process_waited_is_told_in_seconds():
    member = Member.__new__(Member)
    member.pid = os.getpid()
    before = member.waited_for_processor
    told = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    assert 0 < before <= told <= member.waited_for_processor


def test_a_process_that_is_gone_waits_for_nothing():
    member = Member.__new__(Member)
    member.pid = 2**22 + 1  # larger than any that Linux gives
    assert member.waited_for_processor == 0.0
