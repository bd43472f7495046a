"""What happened on a rank, as a table to read."""

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
from pytest_ddp.observed.fingerprint import ANYONE, Fingerprint, shapes_text
from pytest_ddp.outcomes.text_limits import both_ends
from pytest_ddp.planning.world import format_ranks

REPORTED_ROWS = 40
_NAMED = 3
_Operation = CollectiveLaunched | CollectiveWaited | CollectiveCompleted


class Row(NamedTuple):
    """A line of a timeline: when, what, and what is to be known of it."""

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
        return _text(list(rows(self.entries, self.events)))

    def short(self, limit: int = REPORTED_ROWS) -> str:
        """Return a table with at most so many rows, the first and the last."""
        return both_ends(_text(list(rows(self.entries, self.events)), limit))


def posted_timeline(notices: Sequence[Fingerprint], waits_in: Fingerprint | None, limit: int = REPORTED_ROWS) -> str:
    """Return a short table of what a rank had entered that cannot be asked any more."""
    found = [_posted(notice, "waits" if notice is waits_in else "entered") for notice in notices]
    return both_ends(_text(found, limit)) if found else ""


def _text(found: Sequence[Row], limit: int | None = None) -> str:
    left_out = 0 if limit is None else max(0, len(found) - limit)
    first = len(found) if limit is None or not left_out else limit // 3
    kept = [*found[:first], *found[first + left_out :]]
    lines = table(Row._fields, kept, right=("clock", "bytes", "gradients"))
    if left_out:
        lines.insert(1 + first, f"... {left_out} rows left out ...")
    return "\n".join(lines)


def rows(entries: Sequence[Entry], events: Sequence[Event]) -> Iterator[Row]:
    """Yield the rows of a timeline."""
    known = {entry.number: entry for entry in entries}
    ready, expected = dict[int, int](), dict[int, int]()
    for _, together in groupby(events, _subject):
        run = list(together)
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
            yield from _operation(clock, run, known)


def _subject(event: Event) -> tuple[str, int]:
    """Return what is equal for events that may share a row."""
    if isinstance(event, _Operation):
        return "operation", event.number
    return type(event).__name__, event.backward


def _names(run: Sequence[Event]) -> str:
    names = [event.parameter for event in run if isinstance(event, GradientReady)]
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]}, ... {names[-1]}"


def _operation(clock: str, run: Sequence[Event], known: Mapping[int, Entry]) -> Iterator[Row]:
    first = run[0]
    entry = known.get(first.number) if isinstance(first, _Operation) else None
    if entry is None:
        return
    event = ", ".join(_words(run, entry))
    what, group = f"{entry.op} #{entry.sequence}{_peer(entry)}", f"{entry.group} ({format_ranks(entry.ranks)})"
    if isinstance(first, CollectiveLaunched):
        tensors = f"{entry.dtype}{shapes_text(entry.shapes)}" if entry.shapes else ""
        size = f"{entry.bytes:,}" if entry.shapes else ""
        yield Row(clock, event, what, group, tensors, size, _gradients(entry.launched), entry.line)
    elif isinstance(first, CollectiveWaited):
        yield Row(clock, event, what, group, gradients=_gradients(entry.waited), line=first.line)
    else:
        yield Row(clock, event, what, group, gradients=_gradients(entry.completed))


def _words(run: Sequence[Event], entry: Entry) -> Iterator[str]:
    """Yield what happened to an operation, in one row as long as nothing else did; a wait that ended says so."""
    kinds = [type(event) for event in run]
    if CollectiveLaunched in kinds:
        yield "launched"
    if CollectiveWaited in kinds:
        yield "waited" if CollectiveCompleted in kinds or _was_over(entry) else "waits"
    elif CollectiveCompleted in kinds:
        yield "completed"


def _was_over(entry: Entry) -> bool:
    """Whether an operation was over when somebody waited for it."""
    return bool(entry.waited and entry.completed and entry.completed.time < entry.waited.time)


def _peer(operation: Entry | Fingerprint) -> str:
    if operation.op not in {"send", "recv"}:
        return ""
    who = "anyone" if operation.peer in {None, ANYONE} else f"rank {operation.peer}"
    return f" {'to' if operation.op == 'send' else 'from'} {who}"


def _gradients(moment: Moment | None) -> str:
    return "" if moment is None or moment.backward is None else f"{moment.ready}/{moment.expected}"


def _posted(notice: Fingerprint, event: str) -> Row:
    what, group = f"{notice.op} #{notice.number}{_peer(notice)}", f"{notice.group} ({format_ranks(notice.ranks)})"
    return Row("", event, what, group, f"{notice.dtype}{notice.shapes}", line=notice.source)


# Text in columns.

_WIDEST = 60  # characters


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Return a line for the head and for each row; columns without content are left out.

    Args:
        head: the names of the columns.
        rows: a cell for each column; very long cells lose their end.
        right: the columns that are aligned to the right.
    """
    columns = [_column(name, [row[index] for row in rows], name in right) for index, name in enumerate(head)]
    shown = [column for column in columns if any(cell.strip() for cell in column[1:])]
    return ["  ".join(cells).rstrip() for cells in zip(*shown, strict=True)]


def _column(name: str, cells: Sequence[str], to_the_right: bool) -> list[str]:  # noqa: FBT001  internal
    cut = [name, *(cell if len(cell) <= _WIDEST else f"{cell[: _WIDEST - 3]}..." for cell in cells)]
    width = max(map(len, cut))
    return [cell.rjust(width) if to_the_right else cell.ljust(width) for cell in cut]
