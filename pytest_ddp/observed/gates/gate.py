"""Decides when the operations of a rank complete, as a schedule says.

The real operation begins at once, on copies of the tensors that it fills, so other ranks are never held up. Its owner
finds poison in them until it waits: then the results land, in the order that the schedule gives.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pytest_ddp.errors import BlocksInsideBackward
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.gates.held_work import HeldWork
from pytest_ddp.observed.gates.schedule import Schedule
from pytest_ddp.observed.gates.shadow_tensors import ShadowTensors
from pytest_ddp.observed.recording.interfaces import Gate
from pytest_ddp.observed.recording.operations import Call
from pytest_ddp.observed.recording.record import Record

if TYPE_CHECKING:
    import torch

_MOST_POLLS = 100_000  # of one operation inside backward; who asks more often does nothing else


class ScheduledGate(Gate):
    """Holds back the operations that this rank issues, and lets them complete."""

    def __init__(self, schedule: Schedule, record: Record) -> None:
        self._schedule, self._record = schedule, record
        self._numbers = itertools.count(1)
        self._in_flight: dict[int, HeldWork] = {}
        self._polls: dict[int, int] = {}
        self._held = WeakSet[HeldWork]()
        record.at_end.append(self._abandon)

    def issue(self, entry: Entry, call: Call) -> Any:
        """Issue an operation on copies; return the handle that lets its results land."""
        __tracebackhide__ = True
        if not entry.asynchronous:
            self._refuse(f"{entry} waits there for the other ranks", entry.line, "pass async_op=True, and wait")
            return call.issue()
        landing = ShadowTensors(call, entry)
        work = landing.call.issue()
        landing.poison()
        return self._hold_back(work, [entry], [landing])

    def coalesced(self, entries: Sequence[Entry], work: Any) -> Any:
        """Return one handle for operations that complete together."""
        numbers = {entry.number for entry in entries}
        held = [one for one in self._in_flight.values() if numbers.issuperset(e.number for e in one.entries)]
        if not held or work is None:
            return work
        for one in held:
            del self._in_flight[one.number]
        return self._hold_back(work, entries, [landing for one in held for landing in one.landings])

    def _hold_back(self, work: Any, entries: Sequence[Entry], landings: Sequence[ShadowTensors]) -> HeldWork:
        number = next(self._numbers)
        self._in_flight[number] = held = HeldWork(work, entries, landings, number, self)
        self._held.add(held)
        return held

    def _abandon(self) -> None:
        """Let go of everything: handles that a test has left somewhere would keep its group, and the group's threads.

        That happens easily: a hook on a parameter that leads back to the parameter is never collected.
        """
        self._in_flight.clear()
        for work in tuple(self._held):
            work.abandon()

    def release(self, work: HeldWork, wait: Callable[[], Any], timeout: timedelta | None = None) -> None:
        """Let an operation complete, after those ahead of it; raise BlocksInsideBackward if nothing may."""
        __tracebackhide__ = True
        if not work.landed:
            self._refuse(f"it waits there for {work.entries[0]}", self._record.line())
        for other in self._ahead_of(work):
            self._let_pass(other)
        self._in_flight.pop(work.number, None)
        self._complete(work, wait, timeout)

    def poll(self, work: HeldWork) -> bool:
        """Say whether an operation is over.

        Each call lets the next operation in the order complete, if it can without waiting: a program that asks again
        and again, as it must, sees them complete one after the other.
        """
        __tracebackhide__ = True
        if work.landed:
            return True
        if self._holds:
            self._count_poll(work)
            return False
        following = next(iter([*self._ahead_of(work), work]))
        if not following.real.is_completed():
            return False
        if following is work:
            self.release(work, work.real.wait)
        else:
            self._let_pass(following)
        return work.landed

    def hold(self, future: "torch.futures.Future[Any]", work: HeldWork) -> "torch.futures.Future[Any]":
        """Let a future complete when its operation may; return it."""
        if not work.landed:
            self._record.held[future] = work
        return future

    @property
    def _holds(self) -> bool:
        return self._schedule.holds_in_backward and self._record.clock.computes_gradients

    def _ahead_of(self, work: HeldWork) -> list[HeldWork]:
        if work.number not in self._in_flight:
            return []
        return [self._in_flight[number] for number in self._schedule.ahead_of(work.number, self._in_flight)]

    def _let_pass(self, work: HeldWork) -> None:
        """Let an operation complete that nobody has asked for; its results land only if something follows from it.

        Otherwise who reads them without waiting would find them, now and then.
        """
        del self._in_flight[work.number]
        if work.has_followers:
            with suppress(Exception):  # those who follow are told of it
                self._complete(work, work.real.wait)

    def _complete(self, work: HeldWork, wait: Callable[[], Any], timeout: timedelta | None = None) -> None:
        """Let an operation complete; its futures, which are over now, need not be kept for it."""
        try:
            with self._blocked(work, timeout):
                work.complete(wait)
        finally:
            for future in [future for future, other in self._record.held.items() if other is work]:
                del self._record.held[future]

    @contextmanager
    def _blocked(self, work: HeldWork, timeout: timedelta | None = None) -> Iterator[None]:
        """Let it be seen what this rank stands still for, which need not be what it waits for."""
        self._record.monitor.wait_began(work.entries, timeout)
        try:
            yield
        finally:
            self._record.monitor.wait_ended(work.entries)

    def _count_poll(self, work: HeldWork) -> None:
        __tracebackhide__ = True
        self._polls[work.number] = self._polls.get(work.number, 0) + 1
        if self._polls[work.number] > _MOST_POLLS:
            self._refuse(f"it asks there again and again whether {work.entries[0]} is over", self._record.line())

    def _refuse(self, what: str, line: str, remedy: str = "wait") -> None:
        """Raise if nothing may complete now."""
        __tracebackhide__ = True
        if not self._holds:
            return
        inner = next(backward for backward in self._record.clock.running if backward.ready < backward.expected)
        raise BlocksInsideBackward(
            f"blocks inside backward at {line}: {what}, when {inner.ready} of {inner.expected} gradients are computed, "
            f"and {self._schedule!r} lets nothing complete before all are; {remedy} when backward has returned, or in "
            "a callback that is queued to its end"
        )
