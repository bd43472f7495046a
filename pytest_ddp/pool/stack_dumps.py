"""Python stacks of ranks: requests them, waits until they are written, and cuts out the frames of pytest and ours."""

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_ddp.protocol.messages import DUMP_SIGNAL

if TYPE_CHECKING:
    from pytest_ddp.pool.rank_process import RankProcess

_SECONDS = 2.0  # for a rank that ignores or blocks our signal and will never write
_HANDLING_SECONDS = 10.0  # for a rank that is seen to handle the signal, or to be about to
_POLL_SECONDS = 0.02
_PROCESS_ENDED = (FileNotFoundError, ProcessLookupError)
_HARNESS = ("/_pytest/", "/pluggy/", "/pytest_ddp/")
# torch calls these frames, and they call torch: the user's frames are further down.
_BETWEEN = ("/pytest_ddp/observed/", "/pytest_ddp/rank/collective_hooks.py")


def dump_stacks(processes: "Sequence[RankProcess]") -> None:
    """Make all these ranks write their Python stacks, and wait until they have."""
    dumps = [process.begin_dump() for process in processes]
    requested = time.monotonic()
    while dumps:
        select.select([], [], [], _POLL_SECONDS)
        dumps = [dump for dump in dumps if not dump.poll()]
        seconds = _HANDLING_SECONDS if any(dump.is_handling for dump in dumps) else _SECONDS
        if time.monotonic() - requested >= seconds:
            return


class Dump(Protocol):
    """The stacks that one rank was asked to write."""

    @property
    def is_handling(self) -> bool:
        """Whether the last `poll` saw that the rank will write them soon."""

    def poll(self) -> bool:
        """Return whether the rank has written its stacks, or has ended."""


@dataclass
class StackDump:
    """The stacks that one rank was asked to write.

    `is_handling` says whether the last `poll` saw the rank handle the signal, or a thread that is about to.
    """

    process: "RankProcess"
    is_handling: bool = False
    _size_before: int = field(init=False)
    _size: int = field(init=False)
    _blocked_before: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._size_before = self._size = self._written()
        threads = signal_states(self.process.pid, DUMP_SIGNAL) or {}
        self._blocked_before = {thread for thread, state in threads.items() if state.blocked}

    def poll(self) -> bool:
        """Return whether the rank has written its stacks, or has ended.

        A thread blocks a signal while it handles it. Where the system does not show that, the stacks count as written
        as soon as their file stops growing.
        """
        last, self._size = self._size, self._written()
        threads = signal_states(self.process.pid, DUMP_SIGNAL)  # after the size: what had begun to write is seen
        if threads is None:
            return self._size_before < self._size == last
        pending = any(state.pending for state in threads.values())
        all_block = all(state.blocked for state in threads.values())
        handling = any(state.blocked and thread not in self._blocked_before for thread, state in threads.items())
        self.is_handling = handling or (pending and not all_block)
        return not threads or (self._size > self._size_before and not self.is_handling)

    def _written(self) -> int:
        return os.fstat(self.process.shared.stacks.fileno()).st_size


@dataclass(frozen=True)
class SignalState:
    """A signal as one thread sees it.

    Attributes:
        pending: whether the signal was sent to the thread or to its process, and no thread has taken it yet.
        blocked: whether the thread does not take the signal now.
    """

    pending: bool
    blocked: bool


def signal_states(pid: int, number: int) -> dict[str, SignalState] | None:
    """Return the state of a signal for each live thread of a process, by thread id.

    The result is empty if the process has ended, and None if the system does not show these states.
    """
    if sys.platform != "linux":
        return None
    states = {}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_PROCESS_ENDED):
                status = (thread / "status").read_text(encoding="ascii", errors="replace")
                states[thread.name] = _state(dict(line.split(":", 1) for line in status.splitlines()), number)
    except _PROCESS_ENDED:
        pass
    except (OSError, KeyError):
        return None
    return {thread: state for thread, state in states.items() if state is not None}


def _state(status: dict[str, str], number: int) -> SignalState | None:
    """Return the state of a signal from what /proc says about a thread; None if the thread has ended."""
    if status["State"].split()[0] in "ZX":
        return None
    of_thread, of_process, blocked = (
        bool(int(status[name], 16) >> (number - 1) & 1) for name in ("SigPnd", "ShdPnd", "SigBlk")
    )
    return SignalState(pending=of_thread or of_process, blocked=blocked)


def trim_stacks(text: str) -> str:
    """Return a faulthandler dump without frames of pytest and ours, their callers, and threads that have no others."""
    return "\n\n".join(_trimmed_threads(text))


def _trimmed_threads(text: str) -> Iterator[str]:
    for block in text.strip().split("\n\n"):
        kept: list[str] = []
        for line in block.splitlines():
            if any(part in line for part in _BETWEEN):
                continue
            if kept and any(part in line for part in _HARNESS):
                break
            kept.append(line)
        if len(kept) > 1:
            yield "\n".join(kept)
