"""Stacks are waited for until the rank's signal handler has returned; not for long if it will never run."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pytest_ddp.pool import stack_dumps
from pytest_ddp.pool.stack_dumps import SignalState
from pytest_ddp.protocol.messages import DUMP_SIGNAL
from pytest_ddp.protocol.shared_files import memory_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which thread handles a signal")
IDLE, PENDING = SignalState(pending=False, blocked=False), SignalState(pending=True, blocked=False)
HANDLING, BLOCKED = SignalState(pending=False, blocked=True), SignalState(pending=True, blocked=True)
STUCK_IN_ITS_HANDLER = """
import faulthandler, os, signal, sys
full = int(sys.argv[1])
faulthandler.register(int(sys.argv[2]), file=full, chain=False)
os.set_blocking(full, False)
try:
    while True:
        os.write(full, b" ")
except BlockingIOError:
    os.set_blocking(full, True)
print("ready", flush=True)
while True:
    signal.pause()
"""


@dataclass
class Writer:
    """Stands in for a rank that is polled; counts the polls."""

    shared: SimpleNamespace
    pid: int = 0
    polls: int = 0

    def request_stacks(self) -> None:
        pass

    def begin_dump(self) -> stack_dumps.StackDump:
        dump = stack_dumps.StackDump(self)
        self.request_stacks()
        return dump

    def write(self) -> None:
        self.shared.stacks.write(b"a line\n")


@dataclass
class Clock:
    """Stands in for the modules `time` and `select`: every poll takes a second; at some polls something happens."""

    writer: Writer
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def select(self, *_: object) -> None:
        self.writer.polls += 1
        self.now += 1.0
        self.at.get(self.writer.polls, lambda: None)()


@pytest.fixture
def shared():
    with memory_file() as stacks:
        yield SimpleNamespace(stacks=stacks)


@pytest.fixture
def polls_of(monkeypatch, shared):
    """Dump the stacks of one rank; `threads` are its threads before the request and at every poll."""

    def polls(threads, *, writes: bool = True) -> int:
        writer = Writer(shared)
        clock = Clock(writer, {1: writer.write} if writes else {})
        seen = iter(threads)
        monkeypatch.setattr(stack_dumps, "time", clock)
        monkeypatch.setattr(stack_dumps, "select", clock)
        monkeypatch.setattr(stack_dumps, "signal_states", lambda *_: next(seen))
        stack_dumps.dump_stacks([writer])
        return writer.polls

    return polls


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ([IDLE, PENDING, HANDLING, HANDLING, HANDLING, IDLE], 5),
        ([IDLE, *[HANDLING] * 20], 10),
        ([IDLE, *[PENDING] * 20], 10),
        ([IDLE] * 20, 1),
        ([None] * 20, 2),
    ],
    ids=["written slowly", "without end", "no CPU", "at once", "not shown"],
)
def test_a_rank_that_handles_the_signal_is_waited_for(polls_of, threads, expected):
    """The rank writes one line before the first poll and nothing more: after that only its threads count."""
    seen = [thread if thread is None else {"1": thread} for thread in threads]
    assert polls_of(seen) == expected


@pytest.mark.parametrize("threads", [[IDLE] * 20, [HANDLING, *[BLOCKED] * 20]], ids=["ignores", "blocks"])
def test_a_rank_that_ignores_or_blocks_the_signal_gets_two_seconds(polls_of, threads):
    assert polls_of([{"1": thread} for thread in threads], writes=False) == 2


def test_a_thread_that_always_blocks_the_signal_does_not_count_as_handling_it(polls_of):
    assert polls_of([{"1": IDLE, "2": HANDLING}] * 20) == 1


def test_a_process_that_has_ended_is_not_waited_for(polls_of):
    assert polls_of([{"1": IDLE}, {}], writes=False) == 1


def test_a_handler_that_is_stuck_is_seen(monkeypatch, shared):
    """It waits to write into a full pipe. The stacks it has written so far must not count as all of them."""
    reading, full = os.pipe()
    code = [sys.executable, "-c", STUCK_IN_ITS_HANDLER, str(full), str(DUMP_SIGNAL)]
    with subprocess.Popen(code, pass_fds=[full], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            writer = Stuck(shared, process.pid, reading=reading)
            clock = Clock(writer, {5: writer.unblock})
            clock.monotonic = lambda: 0.0  # so that no time limit ends the wait
            monkeypatch.setattr(stack_dumps, "time", clock)
            monkeypatch.setattr(stack_dumps, "select", clock)
            stack_dumps.dump_stacks([writer])
            assert writer.polls >= 5
        finally:
            process.kill()
            os.close(reading)
            os.close(full)


@dataclass
class Stuck(Writer):
    """Stands in for a rank whose handler has begun to write and is stuck."""

    reading: int = -1

    def request_stacks(self) -> None:
        os.kill(self.pid, DUMP_SIGNAL)
        while not any(state.blocked for state in (stack_dumps.signal_states(self.pid, DUMP_SIGNAL) or {}).values()):
            pass
        self.write()

    def unblock(self) -> None:
        os.read(self.reading, 2**20)


def test_a_pending_signal_is_seen_until_it_is_taken():
    me = str(threading.get_native_id())
    signal.pthread_sigmask(signal.SIG_BLOCK, [DUMP_SIGNAL])
    try:
        assert stack_dumps.signal_states(os.getpid(), DUMP_SIGNAL)[me] == HANDLING
        signal.pthread_kill(threading.get_ident(), DUMP_SIGNAL)
        assert stack_dumps.signal_states(os.getpid(), DUMP_SIGNAL)[me] == BLOCKED
        signal.sigwait([DUMP_SIGNAL])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [DUMP_SIGNAL])
    assert stack_dumps.signal_states(os.getpid(), DUMP_SIGNAL)[me] == IDLE


def test_a_process_that_has_ended_has_no_threads():
    assert stack_dumps.signal_states(2**22 + 1, DUMP_SIGNAL) == {}  # larger than any that Linux gives
