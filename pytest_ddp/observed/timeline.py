"""The operations and events of a rank as a table. Consecutive events of one operation share a row."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

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
from pytest_ddp.operations.fingerprint import Fingerprint, peer_text, shapes_text
from pytest_ddp.operations.table import POINT_TO_POINT
from pytest_ddp.outcomes.text_limits import both_ends
from pytest_ddp.planning.world import format_ranks

REPORTED_ROWS = 40
_WIDEST_CELL = 60  # characters
_MOST_NAMES = 3  # of parameters in one row
_Operation = CollectiveLaunched | CollectiveWaited | CollectiveCompleted


class Row(NamedTuple):
    """A row of a timeline; the fields are its columns."""

    clock: str = ""
    event: str = ""
    what: str = ""
    group: str = ""
    tensors: str = ""
    bytes: str = ""
    gradients: str = ""
    line: str = ""


@dataclass(frozen=True)
class Timeline:
    """The operations and events of a rank in the order of its clock; `str()` of it is a table."""

    entries: Sequence[Entry]
    events: Sequence[Event]

    def __str__(self) -> str:
        return _text(list(_rows(self.entries, self.events)))

    def short(self, limit: int = REPORTED_ROWS) -> str:
        """Return a table of at most `limit` rows: the first and the last ones."""
        return both_ends(_text(list(_rows(self.entries, self.events)), limit))


def recorded_timeline(entered: Sequence[Fingerprint], waits_in: Fingerprint | None) -> str:
    """Return a short table of the operations that a rank had recorded before it died or was ended."""
    found = []
    for one in entered:
        event, what, group = "waits" if one is waits_in else "entered", *_name_and_group(one, one.number)
        found.append(Row("", event, what, group, f"{one.dtype}{one.shapes}", line=one.source))
    return both_ends(_text(found, REPORTED_ROWS)) if found else ""


def _rows(entries: Sequence[Entry], events: Sequence[Event]) -> Iterator[Row]:
    known = {entry.number: entry for entry in entries}
    ready, expected = dict[int, int](), dict[int, int]()
    for _, consecutive in groupby(events, _row_key):
        run = list(consecutive)
        first, last = run[0], run[-1]
        clock = f"{first.time}-{last.time}" if len(run) > 1 else str(first.time)
        if isinstance(first, BackwardBegan):
            expected[first.backward] = first.expected
            yield Row(clock, f"backward {first.backward} began", gradients=f"0/{first.expected}", line=first.line)
        elif isinstance(first, BackwardReturned):
            yield Row(clock, f"backward {first.backward} returned")
        elif isinstance(first, GradientReady):
            ready[first.backward] = ready.get(first.backward, 0) + len(run)
            count = f"{ready[first.backward]}/{expected.get(first.backward, '?')}"
            yield Row(clock, "gradients ready" if len(run) > 1 else "gradient ready", _names(run), gradients=count)
        else:
            yield from _operation_row(clock, run, known)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table without its empty columns; long cells are cut, columns in `right` right-aligned."""
    columns = []
    for name, *column in zip(head, *rows, strict=True):
        cells = [name, *(_cut(cell, at_start=name == "line") for cell in column)]
        width = max(map(len, cells))
        if any(column):
            columns.append([cell.rjust(width) if name in right else cell.ljust(width) for cell in cells])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _cut(cell: str, *, at_start: bool) -> str:
    """Shorten a cell that is too wide; the end of FILE:LINE is kept, because it says more than the start."""
    if len(cell) <= _WIDEST_CELL:
        return cell
    return f"...{cell[3 - _WIDEST_CELL :]}" if at_start else f"{cell[: _WIDEST_CELL - 3]}..."


def _row_key(event: Event) -> tuple[type, int]:
    """Return a key; consecutive events with equal keys share a row."""
    return (Entry, event.number) if isinstance(event, _Operation) else (type(event), event.backward)


def _names(run: Sequence[Event]) -> str:
    names = [event.parameter for event in run if isinstance(event, GradientReady)]
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]}, ... {names[-1]}"


def _operation_row(clock: str, run: Sequence[Event], known: Mapping[int, Entry]) -> Iterator[Row]:
    first = run[0]
    entry = known.get(first.number) if isinstance(first, _Operation) else None
    if entry is None:
        return
    event, what, group = ", ".join(_states(run, entry)), *_name_and_group(entry, entry.sequence)
    if isinstance(first, CollectiveLaunched):
        tensors = f"{entry.dtype}{shapes_text(entry.shapes)}" if entry.shapes else ""
        size = f"{entry.bytes:,}" if entry.shapes else ""
        yield Row(clock, event, what, group, tensors, size, _gradients(entry.launched), entry.line)
    elif isinstance(first, CollectiveWaited):
        yield Row(clock, event, what, group, gradients=_gradients(entry.waited), line=first.line)
    else:
        yield Row(clock, event, what, group, gradients=_gradients(entry.completed))


def _states(run: Sequence[Event], entry: Entry) -> Iterator[str]:
    """Yield the states that an operation reached in these events: a wait that has not ended is "waits"."""
    kinds = [type(event) for event in run]
    if CollectiveLaunched in kinds:
        yield "launched"
    if CollectiveWaited in kinds:
        was_complete = entry.waited and entry.completed and entry.completed.time < entry.waited.time
        yield "waited" if CollectiveCompleted in kinds or was_complete else "waits"
    elif CollectiveCompleted in kinds:
        yield "completed"


def _name_and_group(one: Entry | Fingerprint, number: int) -> tuple[str, str]:
    peer = f" {peer_text(one.op, one.peer)}" if one.op in POINT_TO_POINT else ""
    return f"{one.op} #{number}{peer}", f"{one.group} ({format_ranks(one.ranks)})"


def _gradients(moment: Moment | None) -> str:
    return "" if moment is None or moment.backward is None else f"{moment.ready}/{moment.expected}"


def _text(found: Sequence[Row], limit: int | None = None) -> str:
    left_out = 0 if limit is None else max(0, len(found) - limit)
    first = len(found) if limit is None or not left_out else limit // 3
    lines = table(Row._fields, [*found[:first], *found[first + left_out :]], right=("clock", "bytes", "gradients"))
    if left_out:
        lines.insert(1 + first, f"... {left_out} rows left out ...")
    return "\n".join(lines)
