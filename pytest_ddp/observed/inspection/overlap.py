"""Tells whether a rank communicates while backward computes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from pytest_ddp.observed.events import (
    BackwardBegan,
    BackwardReturned,
    CollectiveWaited,
    Entry,
    Event,
    GradientReady,
    Moment,
)

# The backward passes of a rank as its user knows them: one that runs inside another belongs to that one.


@dataclass
class Pass:
    """A backward pass, by the rank's clock.

    Attributes:
        began: when it began.
        last_gradient: when the last gradient of a parameter was ready; infinite as long as it runs.
        returned: when it returned; infinite as long as it runs.
    """

    began: float
    last_gradient: float = inf
    returned: float = inf


def passes(events: Iterable[Event]) -> list[Pass]:
    """Return the backward passes in the order in which they began."""
    found: list[Pass] = []
    running, last_gradient = set[int](), 0
    for event in events:
        if not isinstance(event, BackwardBegan | GradientReady | BackwardReturned):
            continue
        if not running:  # the first event of a pass; not its beginning if the record was cleared since
            found.append(Pass(event.time))
            last_gradient = 0
        running.add(event.backward)
        if isinstance(event, GradientReady):
            last_gradient = event.time
        if isinstance(event, BackwardReturned):
            running.remove(event.backward)
        if not running:
            found[-1].last_gradient, found[-1].returned = last_gradient, event.time
    return found


def pass_of(entry: Entry, found: Iterable[Pass]) -> Pass | None:
    """Return the pass in which an operation was launched, if it was in one."""
    if entry.launched.backward is None:
        return None
    return next((one for one in found if one.returned > entry.launched.time), None)


class Overlap(Enum):
    """How the communication of a backward pass stands to its computation."""

    OVERLAPPED = "overlapped"
    """Something was launched before the last gradient was ready, and nothing was waited for before then."""
    BLOCKS_INSIDE_BACKWARD = "blocks inside backward"
    """Something was waited for when gradients were still to be computed."""
    END_OF_BACKWARD = "end of backward"
    """Everything was launched inside backward, but only when all gradients were ready."""
    AFTER_BACKWARD = "after backward"
    """Nothing was launched inside backward, but something after it had returned and before the next one began."""
    NONE = "none"
    """Nothing was launched in either."""


@dataclass(frozen=True)
class BackwardOverlap:
    """The verdict on one backward pass; those that run inside another one count as part of it.

    Attributes:
        verdict: what it is.
        backward: its number (`Moment.backward`).
        line: where it was called.
        at: the "FILE:LINE" that decided: of the launch, or, where it blocks, of the wait; empty for NONE.
        entry: the operation that decided.
    """

    verdict: Overlap
    backward: int
    line: str
    at: str = ""
    entry: Entry | None = None

    def __str__(self) -> str:
        decided = f" at {self.at}: {self.entry}" if self.entry else ""
        return f"backward {self.backward} ({self.line}): {self.verdict.value}{decided}"


def overlap(entries: Sequence[Entry], events: Sequence[Event]) -> list[BackwardOverlap]:
    """Return the verdict on each backward pass of a record."""
    found = passes(events)
    ends = [*(one.began for one in found), inf][1:]
    lines = {event.number: event.line for event in events if isinstance(event, CollectiveWaited)}
    return [_verdict(one, _began(one, events), entries, lines, end) for one, end in zip(found, ends, strict=False)]


def _verdict(
    one: Pass, began: BackwardBegan, entries: Sequence[Entry], lines: dict[int, str], end: float
) -> BackwardOverlap:
    """Judge a pass by what was launched up to the beginning of the next one."""

    def decided(verdict: Overlap, entry: Entry | None = None, at: str = "") -> BackwardOverlap:
        return BackwardOverlap(verdict, began.backward, began.line, at or (entry.line if entry else ""), entry)

    blocking = [entry for entry in entries if _is_early(_blocks(entry), one)]
    if blocking:
        first = min(blocking, key=lambda entry: getattr(_blocks(entry), "time", inf))
        return decided(Overlap.BLOCKS_INSIDE_BACKWARD, first, lines.get(first.number, ""))
    inside = [entry for entry in entries if one.began < entry.launched.time < one.returned]
    early = [entry for entry in inside if _is_early(entry.launched, one)]
    if inside:
        return decided(Overlap.OVERLAPPED if early else Overlap.END_OF_BACKWARD, (early or inside)[0])
    after = [entry for entry in entries if one.returned < entry.launched.time < end and entry.bytes]
    return decided(Overlap.AFTER_BACKWARD, after[0]) if after else decided(Overlap.NONE)


def _blocks(entry: Entry) -> Moment | None:
    """Return when a rank first waited for an operation."""
    return entry.waited if entry.asynchronous else entry.launched


def _is_early(moment: Moment | None, one: Pass) -> bool:
    """Whether a moment is in a pass and gradients are still to be computed; a pass that raised lacks some for ever."""
    if moment is None or not one.began < moment.time < one.returned:
        return False
    return moment.time < one.last_gradient or moment.ready < moment.expected


def _began(one: Pass, events: Sequence[Event]) -> BackwardBegan:
    """Return the event with which a pass began; of one whose beginning the record has forgotten, one without line."""
    found = (event for event in events if isinstance(event, BackwardBegan) and event.time == one.began)
    return next(found, BackwardBegan(int(one.began), 0, "", 0))
