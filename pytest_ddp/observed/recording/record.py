"""The record of one rank: every operation of its process groups, and what autograd did in between.

Its clock counts events, so two runs of the same program give the same times.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic_ns  # imported by name, because tests replace functions of the module `time`
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.events import (
    BackwardBegan,
    BackwardReturned,
    CollectiveCompleted,
    CollectiveLaunched,
    CollectiveWaited,
    Entry,
    Event,
    GradientReady,
    Moment,
)
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.torch_internals import Future

_done = Future.done  # the original: the patched one polls a gate


class Monitor:
    """Is called, on the rank, before and after the steps of an operation. This base class does nothing."""

    def before_operation(self, entry: Entry) -> None:
        """Handle an operation that the rank is about to issue; an exception raised here prevents it."""

    def wait_began(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Handle a thread that begins to wait for operations, at most `timeout`."""

    def wait_ended(self) -> None:
        """Handle a thread whose wait returned or raised."""

    def unmatched_operations(self) -> list[str]:
        """Describe the operations of this rank in which other ranks did not take part; each is reported once."""
        return []


class Gate:
    """Issues operations. This base class issues each at once and holds nothing back."""

    def issue(self, entry: Entry, call: Call) -> Any:  # noqa: ARG002  subclasses use it
        """Issue an operation; return the Work to wait for, or None if the operation is complete."""
        return call.issue()

    def coalesce(self, entries: Sequence[Entry], work: Any) -> Any:  # noqa: ARG002  likewise
        """Return the Work of operations that the real group coalesced; `work` is the real group's."""
        return work


@dataclass
class Backward:
    """A running backward pass that has computed `ready` of `expected` gradients of parameters."""

    number: int
    line: str
    expected: int
    ready: int = 0


@dataclass
class Clock:
    """Counts events, and knows which backward passes are running.

    Attributes:
        running: the running backward passes, the innermost last (reentrant checkpoints nest them).
        nanoseconds: the machine's monotonic time at each logical time. Traces show it; no assertion may use it.
    """

    running: list[Backward] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def time(self) -> int:
        """Advance the clock; return the new time."""
        self.nanoseconds.append(monotonic_ns())
        return len(self.nanoseconds)

    def tick(self) -> Moment:
        """Advance the clock; return the new time and the progress of the innermost backward pass."""
        time = self.time()
        if not self.running:
            return Moment(time)
        inner = self.running[-1]
        return Moment(time, inner.number, inner.ready, inner.expected)

    @property
    def backward_line(self) -> str:
        """The line that called the innermost backward pass, "" outside of any."""
        return self.running[-1].line if self.running else ""

    @property
    def computes_gradients(self) -> bool:
        """Whether a running backward pass has yet to compute gradients of parameters."""
        return any(backward.ready < backward.expected for backward in self.running)

    def begin_backward(self, line: str, expected: int) -> Backward:
        """Return a new backward pass, which is now the innermost one."""
        backward = Backward(next(self._numbers), line, expected)
        self.running.append(backward)
        return backward


class Record:
    """What this rank did since the test began; any thread may write to it.

    Attributes:
        monitor: is called before each operation, and before and after each wait.
        listeners: functions that are called with each event, in the thread of the event.
        cleanups: functions that are called when the test is over.
        clock: gives each event its time.
        names: maps parameters to their names in events, and keeps no parameter alive.
        gate: issues the operations.
        held_futures: maps each future that a gate holds back to the Work that releases it.
    """

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.monitor = monitor or Monitor()
        self.listeners: list[Callable[[Event], None]] = []
        self.cleanups: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.reset()

    def begin_anew(self, monitor: Monitor) -> None:
        """Number the operations from one on again, and call another monitor."""
        self.monitor, self._numbers = monitor, itertools.count(1)

    @property
    def only_collectives(self) -> bool:
        """Whether no message was sent or received."""
        with self._lock:
            return not any(entry.point_to_point for entry in self._entries.values())

    def reset(self) -> None:
        """Forget everything and start the clock again, for a new test."""
        while self.cleanups:
            self.cleanups.pop()()
        self.clock, self.gate = Clock(), Gate()
        self.names: Any = WeakIdKeyDictionary()
        self.held_futures: Any = WeakIdKeyDictionary()
        self.clear()

    def clear(self) -> None:
        """Forget the operations and events so far."""
        self._futures: list[tuple[torch.futures.Future[Any], Sequence[Entry]]] = []
        self._entries: dict[int, Entry] = {}
        self._waited: dict[int, Moment] = {}
        self._completed: dict[int, Moment] = {}
        self._events: list[Event] = []

    @property
    def entries(self) -> list[Entry]:
        """The operations, in the order in which this rank entered them."""
        self._check_futures()
        with self._lock:
            waited, completed = self._waited.get, self._completed.get
            return [replace(e, waited=waited(n), completed=completed(n)) for n, e in self._entries.items()]

    @property
    def events(self) -> list[Event]:
        """The events, in the order of the clock."""
        self._check_futures()
        with self._lock:
            return list(self._events)

    def line(self) -> str:
        """Return the current line of the user's program; in a thread of autograd, the line that called backward."""
        return caller()[0] or self.clock.backward_line

    def issue(self, call: Call, sequence: int) -> tuple[Entry, Any]:
        """Record a call, the `sequence`-th of its kind in its group, and make it; return the entry and the result."""
        __tracebackhide__ = True  # a mismatch that is raised here is an error of the caller
        entry = self._add_entry(call, sequence)
        self.monitor.before_operation(entry)
        with self.waiting([entry], call.timeout) if call.operation.blocks else nullcontext():
            return entry, self.gate.issue(entry, call)

    @contextmanager
    def waiting(self, entries: Sequence[Entry], timeout: timedelta | None = None) -> Iterator[None]:
        """Record a wait for operations while the block runs; they are complete if it raises nothing."""
        line = self.line() if self.clock.running else ""
        for entry in entries:
            self._mark(entry, CollectiveWaited, line)
        self.monitor.wait_began(entries, timeout)
        try:
            yield
        finally:
            self.monitor.wait_ended()
        self.mark_completed(entries)

    def mark_completed(self, entries: Sequence[Entry]) -> None:
        """Record that operations are complete."""
        for entry in entries:
            self._mark(entry, CollectiveCompleted)

    def track_future(self, future: "torch.futures.Future[Any]", entries: Sequence[Entry]) -> None:
        """Record the operations as complete once the future is done, because C++ code may wait for it unseen.

        The future is checked when backward returns and when the record is read, not in the thread that completes it,
        so that the order of events depends on the program alone.
        """
        self._futures.append((future, entries))

    def backward_began(self, expected: int) -> Backward:
        """Record the beginning of a backward pass that will compute `expected` gradients of parameters."""
        line, _ = caller()
        with self._lock:
            time = self.clock.time()
            backward = self.clock.begin_backward(line, expected)
            event = BackwardBegan(time, backward.number, line, expected)
            self._events.append(event)
        self._notify(event)
        return backward

    def gradient_ready(self, backward: Backward, parameter: torch.Tensor, _: Any = None) -> None:
        """Record that backward computed the gradient of a parameter, which a hook passes as the last argument."""
        name = (self.names and self.names.get(parameter)) or f"parameter {list(parameter.shape)}"
        with self._lock:
            backward.ready += 1
            event = GradientReady(self.clock.time(), backward.number, name)
            self._events.append(event)
        self._notify(event)

    def backward_returned(self, backward: Backward) -> None:
        """Record that a backward pass returned."""
        self._check_futures()
        with self._lock:
            self.clock.running.remove(backward)
            event = BackwardReturned(self.clock.time(), backward.number)
            self._events.append(event)
        self._notify(event)

    def _add_entry(self, call: Call, sequence: int) -> Entry:
        line, called = caller()
        with self._lock:
            line = line or self.clock.backward_line
            entry = call.entry(next(self._numbers), sequence, self.clock.tick(), line, called)
            self._entries[entry.number] = entry
            event = CollectiveLaunched(entry.launched.time, entry.number)
            self._events.append(event)
        self._notify(event)
        return entry

    def _mark(self, entry: Entry, kind: type[CollectiveWaited | CollectiveCompleted], *details: str) -> None:
        """Record the first wait for an operation of this test, or its completion."""
        moments = self._waited if kind is CollectiveWaited else self._completed
        with self._lock:
            if entry.number not in self._entries or entry.number in moments:
                return
            moments[entry.number] = moment = self.clock.tick()
            event = kind(moment.time, entry.number, *details)
            self._events.append(event)
        self._notify(event)

    def _check_futures(self) -> None:
        pending, self._futures = self._futures, []
        for future, entries in pending:
            if _done(future):
                self.mark_completed(entries)
            else:
                self._futures.append((future, entries))

    def _notify(self, event: Event) -> None:
        for listener in tuple(self.listeners):
            listener(event)
