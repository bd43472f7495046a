"""A thread of a submission's own gives backward time to go on: as long as that works, and not much longer."""

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import pytest

from conformance.protocol.messages import Happening
from conformance.ranks.comm_threads import Alongside, Sleeper

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what a thread does is looked up in /proc")
LAUNCHED, REACHED = Happening("launched", number=1), Happening("reached", layer=0)


class Scripted(Sleeper):
    """A thread that works for some looks, then sleeps; what happens at a look can be added."""

    def __init__(self, works: int, at_look: dict[int, Happening] | None = None) -> None:
        super().__init__(0)
        self.works, self.looks, self.at_look = works, 0, at_look or {}
        self.happened: list[Happening] = [LAUNCHED]

    def sleeps(self) -> bool:
        self.looks += 1
        if self.looks in self.at_look:
            self.happened.append(self.at_look[self.looks])
        return self.looks > self.works


@pytest.fixture(autouse=True)
def others(monkeypatch):
    """What the process's other threads use in a look, in seconds: nothing, whatever those of the test run do."""
    used = [0.0]
    times = itertools.count()
    monkeypatch.setattr("conformance.ranks.comm_threads._others_seconds", lambda: used[0] * next(times))
    return used


def test_where_other_threads_have_the_interpreter_all_the_time_a_look_counts_as_many(others):
    others[0] = 0.0055  # as long as a thread that polls keeps the interpreter
    backward = Scripted(works=0)
    Alongside(backward.happened, patience=10).let_go_on(1, {7}, backward)
    assert backward.looks == 2


def test_the_thread_goes_on_when_backward_has():
    backward = Scripted(works=0, at_look={3: REACHED})
    alongside = Alongside(backward.happened, patience=10)
    alongside.let_go_on(1, {7}, backward)
    assert (backward.looks, alongside.patience) == (3, 7)


def test_nobody_is_waited_for_outside_backward():
    backward = Scripted(works=0)
    Alongside(backward.happened).let_go_on(1, set(), backward)
    assert backward.looks == 0


def test_backward_that_stands_still_is_waited_for_so_many_looks_and_no_more_afterwards():
    backward = Scripted(works=0)
    alongside = Alongside(backward.happened, patience=10)
    alongside.let_go_on(1, {7}, backward)
    alongside.let_go_on(1, {7}, backward)
    assert backward.looks == 10


def test_backward_at_work_gets_ten_times_as_long():
    backward = Scripted(works=50, at_look={60: REACHED})
    Alongside(backward.happened, patience=16).let_go_on(1, {7}, backward)
    assert backward.looks == 60
    spins = Scripted(works=10**6)
    Alongside(spins.happened, patience=2).let_go_on(1, {7}, spins)
    assert spins.looks in {20, 21}  # tenths add up to a little less than one


@contextmanager
def running(target) -> Iterator[Sleeper]:
    """Run `target(stop)` in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,))
    thread.start()
    try:
        yield Sleeper(thread.native_id or 0)
    finally:
        stop.set()
        thread.join()


@on_linux
def test_a_thread_that_waits_sleeps():
    with running(lambda stop: stop.wait()) as thread:
        slept = (thread.sleeps() for _ in range(10**6))  # at the first looks it may not have come so far
        assert any(slept)
        assert thread.sleeps()


def computes(stop: threading.Event) -> None:
    block = bytes(10**6)
    while not stop.is_set():
        sha256(block).digest()  # as torch does, it lets other threads run meanwhile


def spins(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


@on_linux
@pytest.mark.parametrize("target", [computes, spins])
def test_a_thread_that_works_does_not_sleep(target):
    with running(target) as thread:
        assert not any(thread.sleeps() for _ in range(30))


def test_where_the_system_does_not_tell_every_look_counts():
    assert Sleeper(-1).sleeps()
