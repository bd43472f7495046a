"""Writes a record as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

In the trace, a rank is a process. It has one track for autograd and, for each process group, as many tracks as the
group had operations in flight at once. A wait is drawn inside its operation. Times are those of the machine's monotonic
clock, which all ranks on it share.
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
from pytest_ddp.operations.fingerprint import shapes_text
from pytest_ddp.planning.world import format_ranks

TraceEvent: TypeAlias = dict[str, Any]

_AUTOGRAD = 0


def merge_traces(paths: Iterable[str | PathLike[str]], into: str | PathLike[str]) -> None:
    """Combine the traces of all ranks into one file, with arrows that connect the ranks of each operation.

    Raises:
        UsageError: if there are no traces, or if a file is not one.
    """
    events = [event for path in paths for event in _read(path)]
    if not events:
        raise UsageError("there are no traces to merge; each rank writes one with ddp.collectives.export_trace(path)")
    write_trace(into, [*events, *_arrows(events)])


def write_trace(path: str | PathLike[str], events: Iterable[TraceEvent]) -> None:
    """Write events to a file, in the order of their times."""
    ordered = sorted(events, key=lambda event: int(event.get("ts", -1)))
    Path(path).write_text(json.dumps({"traceEvents": ordered, "displayTimeUnit": "ms"}), encoding="utf-8")


@dataclass
class Trace:
    """The record of a rank; `nanoseconds` has the machine's time at each time of its clock, which begins at 1."""

    rank: int
    entries: Sequence[Entry]
    events: Sequence[Event]
    nanoseconds: Sequence[int]
    _tracks: list[tuple[str, int]] = field(default_factory=list)

    def trace_events(self) -> Iterator[TraceEvent]:
        """Yield the events of the trace."""
        yield self._metadata("process_name", _AUTOGRAD, name=f"rank {self.rank}")
        yield self._metadata("process_sort_index", _AUTOGRAD, sort_index=self.rank)
        yield self._metadata("thread_name", _AUTOGRAD, name="autograd")
        yield from self._autograd()
        for entry in self.entries:
            yield from self._operation(entry)
        for number, (group, _) in enumerate(self._tracks, _AUTOGRAD + 1):
            yield self._metadata("thread_name", number, name=group)

    def _autograd(self) -> Iterator[TraceEvent]:
        returned = {event.backward: event.time for event in self.events if isinstance(event, BackwardReturned)}
        for event in self.events:
            if isinstance(event, BackwardBegan):
                args = {"line": event.line, "gradients": event.expected}
                span = event.time, returned.get(event.backward)
                yield self._span(span, name=f"backward {event.backward}", cat="autograd", tid=_AUTOGRAD, args=args)
            elif isinstance(event, GradientReady):
                yield self._at(event.time, ph="i", s="t", name=event.parameter, cat="gradient", tid=_AUTOGRAD)

    def _operation(self, entry: Entry) -> Iterator[TraceEvent]:
        start, end = entry.launched.time, entry.completed.time if entry.completed else None
        group = f"group {entry.group} (ranks {format_ranks(entry.ranks)})"
        track = self._track(group, start, end or len(self.nanoseconds))
        name, args = f"{entry.op} #{entry.sequence}", _arguments(entry, self.rank)
        yield self._span((start, end), name=name, cat="operation", tid=track, args=args)
        if entry.waited and (end is None or entry.waited.time < end):
            yield self._span((entry.waited.time, end), name="wait", cat="wait", tid=track, args={})

    def _track(self, group: str, start: int, end: int) -> int:
        """Return a track of the group that is free from `start` on; spans must come in the order of their starts."""
        free = (n for n, (owner, busy_until) in enumerate(self._tracks) if owner == group and busy_until <= start)
        index = next(free, len(self._tracks))
        self._tracks[index : index + 1] = [(group, end)]
        return _AUTOGRAD + 1 + index

    def _span(self, span: tuple[int, int | None], *, args: TraceEvent, **fields: Any) -> TraceEvent:
        """Return a complete event; without an end it lasts until the last time of the clock."""
        start, end = span
        duration = self._microseconds(end or len(self.nanoseconds)) - self._microseconds(start)
        return self._at(start, ph="X", dur=duration, args=args if end else {**args, "ended": False}, **fields)

    def _at(self, time: int, **fields: Any) -> TraceEvent:
        return {"pid": self.rank, "ts": self._microseconds(time), **fields}

    def _microseconds(self, time: int) -> int:
        """Return whole microseconds; rounded fractions could make an inner span end after the outer one."""
        return self.nanoseconds[time - 1] // 1000

    def _metadata(self, kind: str, track: int, **args: Any) -> TraceEvent:
        return {"ph": "M", "name": kind, "pid": self.rank, "tid": track, "args": args}


def _arguments(entry: Entry, rank: int) -> TraceEvent:
    """Return the details of an operation; `match` is equal for the ranks that took part in one operation."""
    moment = entry.launched
    found: TraceEvent = {
        "tensors": f"{entry.dtype}{shapes_text(entry.shapes)}" if entry.shapes else "",
        "bytes": entry.bytes,
        "reduction": entry.reduce_op,
        "root": entry.root,
        "asynchronous": entry.asynchronous,
        "gradients ready": None if moment.backward is None else f"{moment.ready}/{moment.expected}",
        "line": entry.line,
        "match": _match(entry, rank),
    }
    return {name: value for name, value in found.items() if value not in {None, ""}}


def _match(entry: Entry, rank: int) -> str:
    if not entry.point_to_point:
        return f"{entry.group} #{entry.sequence}"
    if entry.peer is None:
        return ""
    source, destination = (rank, entry.peer) if entry.op == "send" else (entry.peer, rank)
    return f"{entry.group} {source} to {destination} with tag {entry.tag} #{entry.sequence}"


def _read(path: str | PathLike[str]) -> list[TraceEvent]:
    try:
        events: list[TraceEvent] = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} was not written by ddp.collectives.export_trace(path) ({type(error).__name__}: {error})"
        ) from error
    return events


def _arrows(events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
    """Yield flow events for each operation, from the first rank that entered it to the last."""
    matches = defaultdict[str, list[TraceEvent]](list)
    for event in events:
        if match := event.get("args", {}).get("match"):
            matches[match].append(event)
    for number, (match, together) in enumerate(matches.items()):
        ordered = sorted(together, key=lambda event: int(event["ts"]))
        for index, event in enumerate(ordered if len(ordered) > 1 else ()):
            ph = "s" if index == 0 else "f" if index == len(ordered) - 1 else "t"
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            yield {"ph": ph, "id": number, "name": match, "cat": "match", **({"bp": "e"} if ph == "f" else {}), **place}
