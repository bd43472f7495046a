"""Decides, for each backward pass of a rank, whether its communication overlaps its computation."""

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


class Overlap(Enum):
    """How the communication of a backward pass overlaps its computation."""

    OVERLAPPED = "overlapped"
    """An operation was launched before the last gradient was ready, and none was waited for before then."""
    BLOCKS_INSIDE_BACKWARD = "blocks inside backward"
    """An operation was waited for before the last gradient was ready."""
    END_OF_BACKWARD = "end of backward"
    """Operations were launched inside backward, but only after the last gradient was ready."""
    AFTER_BACKWARD = "after backward"
    """Operations were launched only after backward had returned, and before the next backward began."""
    NONE = "none"
    """No operation was launched inside or after backward."""


@dataclass(frozen=True)
class BackwardOverlap:
    """The verdict on one backward pass; a pass that runs inside another counts as part of it.

    Attributes:
        verdict: the kind of overlap.
        backward: the number of the pass (`Moment.backward`).
        line: the line that called backward.
        at: "FILE:LINE" of the launch or, if the pass blocks, of the wait that decided; empty for NONE.
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


@dataclass
class BackwardPass:
    """A backward pass; its times are those of the rank's clock.

    Attributes:
        line: the line that called backward; empty if the record was cleared while the pass ran.
        began: when the pass began.
        last_gradient: when the last gradient of a parameter was ready; infinite while the pass runs.
        returned: when the pass returned; infinite while it runs.
    """

    number: int
    line: str
    began: float
    last_gradient: float = inf
    returned: float = inf

    def computes_at(self, moment: Moment | None) -> bool:
        """Whether gradients were still to be computed at a moment; after a pass that raised, some always are."""
        if moment is None or not self.began < moment.time < self.returned:
            return False
        return moment.time < self.last_gradient or moment.ready < moment.expected


def overlap(entries: Sequence[Entry], events: Sequence[Event]) -> list[BackwardOverlap]:
    """Return the verdict on each backward pass of a record."""
    passes = backward_passes(events)
    next_began = [*(backward.began for backward in passes), inf][1:]
    wait_lines = {event.number: event.line for event in events if isinstance(event, CollectiveWaited)}
    return [_verdict(backward, entries, wait_lines, end) for backward, end in zip(passes, next_began, strict=True)]


def backward_passes(events: Iterable[Event]) -> list[BackwardPass]:
    """Return the backward passes in order; a pass that runs inside another is part of it."""
    found: list[BackwardPass] = []
    running, last_gradient = set[int](), 0
    for event in events:
        if not isinstance(event, BackwardBegan | GradientReady | BackwardReturned):
            continue
        if not running:  # the pass began here, or before the record was cleared
            line = event.line if isinstance(event, BackwardBegan) else ""
            found.append(BackwardPass(event.backward, line, event.time))
            last_gradient = 0
        running.add(event.backward)
        if isinstance(event, GradientReady):
            last_gradient = event.time
        if isinstance(event, BackwardReturned):
            running.remove(event.backward)
        if not running:
            found[-1].last_gradient, found[-1].returned = last_gradient, event.time
    return found


def launching_pass(entry: Entry, passes: Iterable[BackwardPass]) -> BackwardPass | None:
    """Return the backward pass in which an operation was launched, if any."""
    if entry.launched.backward is None:
        return None
    return next((backward for backward in passes if backward.returned > entry.launched.time), None)


def _verdict(backward: BackwardPass, entries: Sequence[Entry], lines: dict[int, str], end: float) -> BackwardOverlap:
    """Judge a pass by the operations that were launched before `end`, where the next one began."""

    def decided(verdict: Overlap, entry: Entry | None = None, at: str = "") -> BackwardOverlap:
        return BackwardOverlap(verdict, backward.number, backward.line, at or (entry.line if entry else ""), entry)

    blocking = [entry for entry in entries if backward.computes_at(_first_wait(entry))]
    if blocking:
        first = min(blocking, key=lambda entry: getattr(_first_wait(entry), "time", inf))
        return decided(Overlap.BLOCKS_INSIDE_BACKWARD, first, lines.get(first.number, ""))
    inside = [entry for entry in entries if backward.began < entry.launched.time < backward.returned]
    early = [entry for entry in inside if backward.computes_at(entry.launched)]
    if inside:
        return decided(Overlap.OVERLAPPED if early else Overlap.END_OF_BACKWARD, (early or inside)[0])
    after = [entry for entry in entries if backward.returned < entry.launched.time < end and entry.bytes]
    return decided(Overlap.AFTER_BACKWARD, after[0]) if after else decided(Overlap.NONE)


def _first_wait(entry: Entry) -> Moment | None:
    return entry.waited if entry.asynchronous else entry.launched
