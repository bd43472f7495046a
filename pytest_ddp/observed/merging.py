"""Makes one trace of those of all ranks."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.trace import Traced, write_trace


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
