"""What Linux tells of a signal that was sent to a process: for whom it waits, and who holds it back."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Thread:
    """How a thread stands to a signal.

    Attributes:
        waits: whether the signal was sent, to it or to its process, and nobody has taken it yet.
        blocks: whether the thread does not take it now; so it is, too, while it handles it.
    """

    waits: bool
    blocks: bool


def threads(pid: int, number: int) -> dict[str, Thread] | None:
    """Return the threads of a process that live, none if it is gone; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        return {task: _thread(fields, number) for task, fields in _fields(pid) if fields["State"][0] not in "ZX"}
    except (OSError, KeyError):
        return None


def _fields(pid: int) -> Iterator[tuple[str, dict[str, str]]]:
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_GONE):  # it ends while we look
                lines = (task / "status").read_text(encoding="ascii", errors="replace").splitlines()
                yield task.name, {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _thread(fields: dict[str, str], number: int) -> Thread:
    pending, shared, blocked = (
        bool(int(fields[name], 16) >> (number - 1) & 1) for name in ("SigPnd", "ShdPnd", "SigBlk")
    )
    return Thread(waits=pending or shared, blocks=blocked)
