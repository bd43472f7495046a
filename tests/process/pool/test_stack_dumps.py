"""Stacks are waited for until the rank's handler has returned, and no longer where it will never run."""

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
from pytest_ddp.pool.stack_dumps import Thread
from pytest_ddp.protocol.messages import DUMP_SIGNAL
from pytest_ddp.protocol.shared_files import memory_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who handles a signal")
IDLE, WAITED_FOR = Thread(waits=False, blocks=False), Thread(waits=True, blocks=False)
HANDLING, DEAF = Thread(waits=False, blocks=True), Thread(waits=True, blocks=True)
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
    """Stands in for a rank; its looks are counted, and at some of them it does something."""

    shared: SimpleNamespace
    pid: int = 0
    looks: int = 0

    def ask_for_stacks(self) -> None:
        pass

    def write(self) -> None:
        self.shared.stacks.write(b"a line\n")


@dataclass
class Clock:
    """Stands in for the modules `time` and `select`: every look takes a second."""

    writer: Writer
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def select(self, *_: object) -> None:
        self.writer.looks += 1
        self.now += 1.0
        self.at.get(self.writer.looks, lambda: None)()


@pytest.fixture
def shared():
    with memory_file() as stacks:
        yield SimpleNamespace(stacks=stacks)


@pytest.fixture
def looks_of(monkeypatch, shared):
    """Dump the stacks of one rank; say what is seen of its threads, before it is asked and at every look."""

    def looks(threads, *, writes: bool = True) -> int:
        writer = Writer(shared)
        clock = Clock(writer, {1: writer.write} if writes else {})
        seen = iter(threads)
        monkeypatch.setattr(stack_dumps, "time", clock)
        monkeypatch.setattr(stack_dumps, "select", clock)
        monkeypatch.setattr(stack_dumps, "threads_and_signal", lambda *_: next(seen))
        stack_dumps.dump_stacks([writer])
        return writer.looks

    return looks


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ([IDLE, WAITED_FOR, HANDLING, HANDLING, HANDLING, IDLE], 5),
        ([IDLE, *[HANDLING] * 20], 10),
        ([IDLE, *[WAITED_FOR] * 20], 10),
        ([IDLE] * 20, 1),
        ([None] * 20, 2),
    ],
    ids=["written slowly", "without end", "no processor", "at once", "not told"],
)
def test_who_is_at_it_is_waited_for(looks_of, threads, expected):
    """The rank writes one line at the first look, and nothing more: from then on only its threads tell."""
    seen = [thread if thread is None else {"1": thread} for thread in threads]
    assert looks_of(seen) == expected


@pytest.mark.parametrize("threads", [[IDLE] * 20, [HANDLING, *[DEAF] * 20]], ids=["ignores", "blocks"])
def test_who_ignores_or_blocks_the_signal_gets_two_seconds(looks_of, threads):
    assert looks_of([{"1": thread} for thread in threads], writes=False) == 2


def test_a_thread_that_never_takes_signals_is_not_taken_for_one_that_handles_ours(looks_of):
    assert looks_of([{"1": IDLE, "2": HANDLING}] * 20) == 1


def test_who_is_gone_is_not_waited_for(looks_of):
    assert looks_of([{"1": IDLE}, {}], writes=False) == 1


def test_a_handler_that_stands_still_is_seen(monkeypatch, shared):
    """It waits to write into a full pipe, with some of its stacks written: they must not pass for all of them."""
    reading, full = os.pipe()
    code = [sys.executable, "-c", STUCK_IN_ITS_HANDLER, str(full), str(DUMP_SIGNAL)]
    with subprocess.Popen(code, pass_fds=[full], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            writer = Stuck(shared, process.pid, reading=reading)
            clock = Clock(writer, {5: writer.let_go})
            clock.monotonic = lambda: 0.0  # however long it takes
            monkeypatch.setattr(stack_dumps, "time", clock)
            monkeypatch.setattr(stack_dumps, "select", clock)
            stack_dumps.dump_stacks([writer])
            assert writer.looks >= 5
        finally:
            process.kill()
            os.close(reading)
            os.close(full)


@dataclass
class Stuck(Writer):
    """Stands in for a rank whose handler has begun to write and cannot go on."""

    reading: int = -1

    def ask_for_stacks(self) -> None:
        os.kill(self.pid, DUMP_SIGNAL)
        while not any(
            thread.blocks for thread in (stack_dumps.threads_and_signal(self.pid, DUMP_SIGNAL) or {}).values()
        ):
            pass
        self.write()

    def let_go(self) -> None:
        os.read(self.reading, 2**20)


def test_a_signal_that_waits_is_seen_until_it_is_taken():
    me = str(threading.get_native_id())
    signal.pthread_sigmask(signal.SIG_BLOCK, [DUMP_SIGNAL])
    try:
        assert stack_dumps.threads_and_signal(os.getpid(), DUMP_SIGNAL)[me] == HANDLING
        signal.pthread_kill(threading.get_ident(), DUMP_SIGNAL)
        assert stack_dumps.threads_and_signal(os.getpid(), DUMP_SIGNAL)[me] == DEAF
        signal.sigwait([DUMP_SIGNAL])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [DUMP_SIGNAL])
    assert stack_dumps.threads_and_signal(os.getpid(), DUMP_SIGNAL)[me] == IDLE


def test_a_process_that_is_gone_has_no_threads():
    assert stack_dumps.threads_and_signal(2**22 + 1, DUMP_SIGNAL) == {}  # larger than any that Linux gives
