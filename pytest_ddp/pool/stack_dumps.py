"""Makes ranks write their Python stacks and waits until they have, however busy the machine."""

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.protocol.messages import DUMP_SIGNAL

_SECONDS = 2.0  # for a rank that may never write: it ignores our signal, or blocks it
_BUSY_SECONDS = 10.0  # for one that is seen to be about to, or at it
_POLL_SECONDS = 0.02
_GONE = (FileNotFoundError, ProcessLookupError)


def dump_stacks(processes: Sequence[RankProcess]) -> None:
    """Make processes write their Python stacks, all at a time; wait until they have."""
    dumps = [Dump(process) for process in processes]
    for process in processes:
        process.ask_for_stacks()
    asked = time.monotonic()
    while dumps:
        select.select([], [], [], _POLL_SECONDS)
        dumps = [dump for dump in dumps if not dump.is_over()]
        seconds = _BUSY_SECONDS if any(dump.is_under_way for dump in dumps) else _SECONDS
        if time.monotonic() - asked >= seconds:
            return


@dataclass
class Dump:
    """The stacks that one rank is to write.

    Attributes:
        is_under_way: whether the rank was seen to handle the signal, or to be about to, when it was last looked at.
    """

    process: RankProcess
    is_under_way: bool = False
    _before: int = field(init=False)
    _size: int = field(init=False)
    _blocking: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._size = self._written()
        threads = threads_and_signal(self.process.pid, DUMP_SIGNAL) or {}
        self._blocking = {task for task, thread in threads.items() if thread.blocks}

    def is_over(self) -> bool:
        """Look whether the rank has written all; where the system does not tell, whether it seems to have stopped."""
        last, self._size = self._size, self._written()
        threads = threads_and_signal(self.process.pid, DUMP_SIGNAL)  # after the size: who has begun is then seen at it
        if threads is None:
            return self._before < self._size == last
        waiting = any(thread.waits for thread in threads.values())
        taken = any(thread.blocks and task not in self._blocking for task, thread in threads.items())
        self.is_under_way = taken or (waiting and not all(thread.blocks for thread in threads.values()))
        return not threads or (self._size > self._before and not self.is_under_way)

    def _written(self) -> int:
        return os.fstat(self.process.shared.stacks.fileno()).st_size


@dataclass(frozen=True)
class Thread:
    """How a thread stands to a signal.

    Attributes:
        waits: whether the signal was sent, to it or to its process, and nobody has taken it yet.
        blocks: whether the thread does not take it now; so it is, too, while it handles it.
    """

    waits: bool
    blocks: bool


def threads_and_signal(pid: int, number: int) -> dict[str, Thread] | None:
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
