"""A gate that completes the operations of a rank when a schedule says so.

The real operation starts at once, on copies of the tensors that it fills, so it delays no other rank. The caller's
tensors hold poison until the caller waits. Then the operations ahead of this one in the schedule complete, and the
results are written to the caller's tensors.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from pytest_ddp.errors import BlocksInsideBackward
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.gates.held_work import HeldWork
from pytest_ddp.observed.gates.schedule import Schedule
from pytest_ddp.observed.gates.shadow_tensors import ShadowTensors
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.record import Gate, Record

_MOST_POLLS = 100_000  # of one operation inside backward; a program that polls more often is in a busy wait


class ScheduledGate(Gate):
    """Holds the operations that this rank issues, and releases them in the order of a schedule.

    Attributes:
        futures: maps each future that is held back to the handle that releases it.
    """

    def __init__(self, schedule: Schedule, record: Record) -> None:
        self._schedule, self._record, self.futures = schedule, record, record.held_futures
        self._numbers = itertools.count(1)
        self._in_flight: dict[int, HeldWork] = {}
        self._polls = Counter[int]()
        self._held = WeakSet[HeldWork]()
        record.cleanups.append(self._drop_all)

    def issue(self, entry: Entry, call: Call) -> Any:
        """Issue an operation on copies; return the held handle."""
        __tracebackhide__ = True
        if not entry.asynchronous:
            self._require_open(f"{entry} waits there for the other ranks", entry.line, "pass async_op=True, and wait")
            return call.issue()
        shadow = ShadowTensors(call, entry, spoils=self._schedule.spoils)
        work = shadow.call.issue()
        shadow.poison()
        return self._hold(work, [entry], [shadow])

    def coalesce(self, entries: Sequence[Entry], work: Any) -> Any:
        """Return one held handle for operations that complete together."""
        numbers = {entry.number for entry in entries}
        parts = [held for held in self._in_flight.values() if numbers.issuperset(e.number for e in held.entries)]
        if not parts or work is None:
            return work
        for part in parts:
            del self._in_flight[part.number]
        return self._hold(work, entries, [shadow for part in parts for shadow in part.shadows])

    def release(self, work: HeldWork, wait: Callable[[], Any], timeout: timedelta | None = None) -> None:
        """Complete an operation that the program waits for, after those ahead of it; `wait` waits for the real one.

        Raises:
            BlocksInsideBackward: if the schedule lets no operation complete now.
        """
        __tracebackhide__ = True
        if not work.delivered:
            self._require_open(f"this rank waits there for {work.entries[0]}", self._record.line())
        for other in self._ahead_of(work):
            self._complete_unrequested(other)
        self._in_flight.pop(work.number, None)
        self._complete(work, wait, timeout)

    def poll(self, work: HeldWork) -> bool:
        """Return whether an operation is complete.

        Each call completes the next operation in the order, if the real one is complete. A program that polls in a
        loop therefore sees them complete one by one.
        """
        __tracebackhide__ = True
        if work.delivered:
            return True
        if self._holds:
            self._polls[work.number] += 1
            if self._polls[work.number] > _MOST_POLLS:
                self._require_open(f"this rank polls {work.entries[0]} in a loop", self._record.line())
            return False
        following = [*self._ahead_of(work), work][0]
        if not following.real.is_completed():
            return False
        if following is work:
            self.release(work, work.real.wait)
        else:
            self._complete_unrequested(following)
        return work.delivered

    @property
    def _holds(self) -> bool:
        return self._schedule.holds_in_backward and self._record.clock.computes_gradients

    def _hold(self, work: Any, entries: Sequence[Entry], shadows: Sequence[ShadowTensors]) -> HeldWork:
        number = next(self._numbers)
        self._in_flight[number] = held = HeldWork(work, entries, shadows, number, self)
        self._held.add(held)
        return held

    def _ahead_of(self, work: HeldWork) -> list[HeldWork]:
        if work.number not in self._in_flight:
            return []
        return [self._in_flight[number] for number in self._schedule.ahead_of(work.number, self._in_flight)]

    def _complete_unrequested(self, work: HeldWork) -> None:
        """Complete an operation that the program has not waited for.

        Its results are written only if it has a future, whose callbacks may run now. Otherwise they are written when
        the program waits, so that code that forgets to wait always reads poison.
        """
        del self._in_flight[work.number]
        if work.future is not None:
            with suppress(Exception):  # the future has the error
                self._complete(work, work.real.wait)

    def _complete(self, work: HeldWork, wait: Callable[[], Any], timeout: timedelta | None = None) -> None:
        self._record.monitor.wait_began(work.entries, timeout)  # the program may have waited for another one
        try:
            work.complete(wait)
        finally:
            self._record.monitor.wait_ended()
            for future in [future for future, other in self.futures.items() if other is work]:
                del self.futures[future]

    def _require_open(self, problem: str, line: str, remedy: str = "wait") -> None:
        """Raise BlocksInsideBackward if the schedule lets no operation complete now."""
        __tracebackhide__ = True
        if not self._holds:
            return
        inner = next(backward for backward in self._record.clock.running if backward.ready < backward.expected)
        raise BlocksInsideBackward(
            f"blocks inside backward at {line}: {problem}, with {inner.ready} of {inner.expected} gradients ready; "
            f"{self._schedule!r} completes no operation before all are ready; {remedy} after backward has returned, "
            "or in a callback that is queued for its end"
        )

    def _drop_all(self) -> None:
        """Drop the references to real handles: a handle that a test leaks would keep its group and threads alive.

        Such leaks are common: a hook on a parameter that refers back to the parameter is never collected.
        """
        self._in_flight.clear()
        for work in tuple(self._held):
            work.drop()
