"""The record of one rank: every operation of its process groups, and what autograd did meanwhile."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
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
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.observed.recording.clock import Backward, Clock
from pytest_ddp.observed.recording.interfaces import Gate, Monitor
from pytest_ddp.observed.recording.operations import Call

_done = torch._C.Future.done  # noqa: SLF001  its own, which tells no gate


class Record:
    """What this rank did since the test began; written from any thread.

    Attributes:
        monitor: is told what the rank is about to do.
        gate: issues the operations.
        listeners: called with each event, in the thread in which it happens.
        clock: gives the events their times.
        names: what events call parameters.
        held: the futures that a gate keeps from completing, and the handles of theirs that let them.
        at_end: called when the test is over, to let go of what its group has made.
    """

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.monitor = monitor or Monitor()
        self.at_end: list[Callable[[], None]] = []
        self.listeners: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.reset()

    def reset(self) -> None:
        """Forget everything, and let the clock start again, for a new test."""
        while self.at_end:
            self.at_end.pop()()
        self.clock, self.names, self.gate = Clock(), Names(), Gate()
        self.held: Any = WeakIdKeyDictionary()
        self.clear()

    def clear(self) -> None:
        """Forget the operations and events so far."""
        self._futures: list[tuple[torch.futures.Future[Any], Sequence[Entry]]] = []
        self._entries: dict[int, Entry] = {}
        self._waited: dict[int, Moment] = {}
        self._completed: dict[int, Moment] = {}
        self._events: list[tuple[type[Event], tuple[Any, ...]]] = []

    @property
    def entries(self) -> list[Entry]:
        """The operations, in the order in which they were entered."""
        self._look_at_futures()
        with self._lock:
            waited, completed = self._waited.get, self._completed.get
            return [replace(e, waited=waited(n), completed=completed(n)) for n, e in self._entries.items()]

    @property
    def events(self) -> list[Event]:
        """The events, in the order of the clock."""
        self._look_at_futures()
        with self._lock:
            return [kind(*values) for kind, values in self._events]

    def issue(self, call: Call, sequence: int) -> tuple[Entry, Any]:
        """Note down a call, the `sequence`-th of its kind in its group, and make it; return what that returned too."""
        __tracebackhide__ = True  # a mismatch is raised in here, and is the caller's
        entry = self._enter(call, sequence)
        self.monitor.before_operation(entry)
        if call.operation.blocks:
            with self.waiting([entry], call.timeout):
                return entry, self.gate.issue(entry, call)
        return entry, self.gate.issue(entry, call)

    @contextmanager
    def waiting(self, entries: Sequence[Entry], timeout: timedelta | None = None) -> Iterator[None]:
        """Be in a wait for operations, which are over when it is left without an exception."""
        line = self.line() if self.clock.running else ""
        for entry in entries:
            self._mark(entry, CollectiveWaited, line)
        self.monitor.wait_began(entries, timeout)
        try:
            yield
        finally:
            self.monitor.wait_ended(entries)
        self.completed(entries)

    def completed(self, entries: Sequence[Entry]) -> None:
        """Note that operations are known to be over."""
        for entry in entries:
            self._mark(entry, CollectiveCompleted)

    def expect(self, future: "torch.futures.Future[Any]", entries: Sequence[Entry]) -> None:
        """Remember a future that somebody took, whose waits are not seen.

        It is looked at when backward has returned and when the record is read, not when its own thread sets it: the
        order of events shall be the program's.
        """
        self._futures.append((future, entries))

    def backward_began(self, expected: int) -> Backward:
        """Note that a backward pass begins, which is to compute so many gradients of parameters."""
        line, _ = caller()
        with self._lock:
            time = self.clock.time()
            backward = self.clock.begin_backward(line, expected)
            event = BackwardBegan, (time, backward.number, line, expected)
            self._events.append(event)
        self._tell(*event)
        return backward

    def gradient_ready(self, backward: Backward, parameter: torch.Tensor) -> None:
        """Note that a gradient is computed."""
        name = self.names.of(parameter)
        with self._lock:
            backward.ready += 1
            event = GradientReady, (self.clock.time(), backward.number, name)
            self._events.append(event)
        self._tell(*event)

    def backward_returned(self, backward: Backward) -> None:
        """Note that a backward pass has returned."""
        self._look_at_futures()
        with self._lock:
            self.clock.end_backward(backward)
            event = BackwardReturned, (self.clock.time(), backward.number)
            self._events.append(event)
        self._tell(*event)

    def line(self) -> str:
        """Return the line of the user's program at which this thread is; that of backward in a thread of autograd's."""
        running = self.clock.running
        return caller()[0] or (running[-1].line if running else "")

    def _enter(self, call: Call, sequence: int) -> Entry:
        line, called = caller()
        with self._lock:
            running = self.clock.running
            line = line or (running[-1].line if running else "")
            entry = call.entry(next(self._numbers), sequence, self.clock.tick(), line, called)
            self._entries[entry.number] = entry
            event = CollectiveLaunched, (entry.launched.time, entry.number)
            self._events.append(event)
        self._tell(*event)
        return entry

    def _mark(self, entry: Entry, kind: type[CollectiveWaited | CollectiveCompleted], *more: str) -> None:
        """Note when something first happened to an operation, unless it belongs to an earlier test."""
        marks = self._waited if kind is CollectiveWaited else self._completed
        with self._lock:
            if entry.number not in self._entries or entry.number in marks:
                return
            marks[entry.number] = moment = self.clock.tick()
            event = kind, (moment.time, entry.number, *more)
            self._events.append(event)
        self._tell(*event)

    def _look_at_futures(self) -> None:
        waiting, self._futures = self._futures, []
        for future, entries in waiting:
            if _done(future):
                self.completed(entries)
            else:
                self._futures.append((future, entries))

    def _tell(self, kind: type[Event], values: tuple[Any, ...]) -> None:
        """Tell an event to whoever listens; few do, so events are made of their values only then, and when read."""
        if self.listeners:
            event = kind(*values)
            for listener in tuple(self.listeners):
                listener(event)


# What the record calls parameters.


@dataclass
class Names:
    """The names that the user gave; holds on to no parameter, because that would keep a model's memory."""

    _known: dict[int, tuple["weakref.ref[torch.Tensor]", str]] = field(default_factory=dict)

    def learn(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Learn the names of parameters."""
        for name, parameter in parameters:
            self._known[id(parameter)] = weakref.ref(parameter), name

    def of(self, parameter: torch.Tensor) -> str:
        """Return the parameter's name, or a description of one that has none."""
        known, name = self._known.get(id(parameter), (None, ""))
        if known is not None and known() is parameter:
            return name
        return f"parameter {list(parameter.shape)}"
