"""Writes a record in the format of Chrome's tracing, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A rank is a process there. Its rows are autograd's and, for every process group, as many as operations of it were ever
under way at once; inside an operation stands the wait for it. Times are those of the machine's monotonic clock, which
all its processes share.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import BackwardBegan, BackwardReturned, Entry, Event, GradientReady
from pytest_ddp.observed.fingerprint import shapes_text
from pytest_ddp.planning.world import format_ranks

Traced: TypeAlias = dict[str, Any]


@dataclass
class Lanes:
    """Lanes, numbered from `first` on; the spans of a lane follow one another.

    Attributes:
        made: the lanes that there are, as (whose, number).
    """

    first: int = 0
    made: list[tuple[str, int]] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=dict)

    def place(self, whose: str, start: int, end: int) -> int:
        """Return the number of a lane for a span of somebody; spans must come in the order of their starts."""
        for owner, number in self.made:
            if owner == whose and self._ends[number] <= start:
                self._ends[number] = end
                return number
        number = self.first + len(self.made)
        self.made.append((whose, number))
        self._ends[number] = end
        return number


# Makes one trace of those of all ranks.


def merge_traces(paths: Iterable[str | PathLike[str]], into: str | PathLike[str]) -> None:
    """Make one trace of those that ranks have exported; arrows lead from rank to rank through each operation.

    Raises:
        UsageError: when there are none, or when a file is no such trace.
    """
    events = [event for path in paths for event in _read(path)]
    if not events:
        raise UsageError("there are no traces to merge; ranks write them with ddp.collectives.export_trace(path)")
    write_trace(into, [*events, *_arrows(events)])


def _read(path: str | PathLike[str]) -> list[Traced]:
    try:
        events: list[Traced] = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} is no trace that ddp.collectives.export_trace(path) has written ({type(error).__name__}: {error})"
        ) from error
    return events


def _arrows(events: Iterable[Traced]) -> Iterator[Traced]:
    """Yield flow events: from the rank that came first to an operation, through the others, to the last."""
    meetings = defaultdict[str, list[Traced]](list)
    for event in events:
        if meets := event.get("args", {}).get("meets"):
            meetings[meets].append(event)
    for number, (meets, together) in enumerate(meetings.items()):
        ordered = sorted(together, key=lambda event: int(event["ts"]))
        for index, event in enumerate(ordered if len(ordered) > 1 else ()):
            ph = "s" if index == 0 else "f" if index == len(ordered) - 1 else "t"
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            yield {"ph": ph, "id": number, "name": meets, "cat": "meets", **({"bp": "e"} if ph == "f" else {}), **place}


_AUTOGRAD = 0


def write_trace(path: str | PathLike[str], events: Iterable[Traced]) -> None:
    """Write events to a file, in the order of their times."""
    ordered = sorted(events, key=lambda event: int(event.get("ts", -1)))
    Path(path).write_text(json.dumps({"traceEvents": ordered, "displayTimeUnit": "ms"}), encoding="utf-8")


@dataclass
class Trace:
    """The record of a rank.

    Attributes:
        rank: the rank.
        entries: its operations.
        events: its events.
        nanoseconds: when each time of its clock was, that of time 1 first.
    """

    rank: int
    entries: Sequence[Entry]
    events: Sequence[Event]
    nanoseconds: Sequence[int]
    _lanes: Lanes = field(default_factory=lambda: Lanes(first=_AUTOGRAD + 1))

    def traced(self) -> Iterator[Traced]:
        """Yield the events of the trace."""
        yield self._meta("process_name", _AUTOGRAD, name=f"rank {self.rank}")
        yield self._meta("process_sort_index", _AUTOGRAD, sort_index=self.rank)
        yield self._meta("thread_name", _AUTOGRAD, name="autograd")
        yield from self._autograd()
        for entry in self.entries:
            yield from self._operation(entry)
        for group, number in self._lanes.made:
            yield self._meta("thread_name", number, name=group)

    def _autograd(self) -> Iterator[Traced]:
        returned = {event.backward: event.time for event in self.events if isinstance(event, BackwardReturned)}
        for event in self.events:
            if isinstance(event, BackwardBegan):
                shown = {"line": event.line, "gradients": event.expected}
                span = event.time, returned.get(event.backward)
                yield self._complete(span, name=f"backward {event.backward}", cat="autograd", tid=_AUTOGRAD, args=shown)
            elif isinstance(event, GradientReady):
                yield self._at(event.time, ph="i", s="t", name=event.parameter, cat="gradient", tid=_AUTOGRAD)

    def _operation(self, entry: Entry) -> Iterator[Traced]:
        start, end = entry.launched.time, entry.completed.time if entry.completed else None
        group = f"group {entry.group} (ranks {format_ranks(entry.ranks)})"
        lane = self._lanes.place(group, start, end or len(self.nanoseconds))
        name, shown = f"{entry.op} #{entry.sequence}", arguments(entry, self.rank)
        yield self._complete((start, end), name=name, cat="operation", tid=lane, args=shown)
        if entry.waited and (end is None or entry.waited.time < end):
            yield self._complete((entry.waited.time, end), name="wait", cat="wait", tid=lane, args={})

    def _complete(self, span: tuple[int, int | None], *, args: Traced, **fields: Any) -> Traced:
        """Return a complete event; one that has no end lasts until the last time of the clock."""
        start, end = span
        lasted = self._microseconds(end or len(self.nanoseconds)) - self._microseconds(start)
        return self._at(start, ph="X", dur=lasted, args=args if end else {**args, "ended": False}, **fields)

    def _at(self, time: int, **fields: Any) -> Traced:
        return {"pid": self.rank, "ts": self._microseconds(time), **fields}

    def _microseconds(self, time: int) -> int:
        """Return whole ones: fractions of so large numbers would be rounded, and spans that nest stick out."""
        return self.nanoseconds[time - 1] // 1000

    def _meta(self, kind: str, row: int, **args: Any) -> Traced:
        return {"ph": "M", "name": kind, "pid": self.rank, "tid": row, "args": args}


def arguments(entry: Entry, rank: int) -> Traced:
    """Return what is shown of an operation; `meets` is equal for the operations of different ranks that became one."""
    moment = entry.launched
    found: Traced = {
        "tensors": f"{entry.dtype}{shapes_text(entry.shapes)}" if entry.shapes else "",
        "bytes": entry.bytes,
        "reduction": entry.reduce_op,
        "root": entry.root,
        "asynchronous": entry.asynchronous,
        "gradients ready": None if moment.backward is None else f"{moment.ready}/{moment.expected}",
        "line": entry.line,
        "meets": _meeting(entry, rank),
    }
    return {name: value for name, value in found.items() if value not in {None, ""}}


def _meeting(entry: Entry, rank: int) -> str:
    if not entry.point_to_point:
        return f"{entry.group} #{entry.sequence}"
    if entry.peer is None:
        return ""
    way = (rank, entry.peer) if entry.op == "send" else (entry.peer, rank)
    return f"{entry.group} {way[0]} to {way[1]} with tag {entry.tag} #{entry.sequence}"
