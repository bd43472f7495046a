"""Threads of a submission that communicate beside backward.

When such a thread runs is the interpreter's choice, and not when a gradient is ready. For the recorded order to be the
program's and not chance, each side gives the other time: backward waits before its last layer until a thread has
launched a collective; a thread waits before it waits for one until backward has gone on.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.protocol.messages import Happening
from pytest_ddp.protocol.flight_recorder import has_other_threads

_LOOK_SECONDS = 0.001
_AT_WORK = 0.1
_SLEEPS = "S"  # see proc(5); a thread that waits for a disk, memory or a CPU is in another state


@dataclass
class Sleeper:
    """A thread of this process, by its native id, whose state is polled."""

    thread: int
    _wakings: str = ""

    def sleeps(self) -> bool:
        """Whether the thread has slept since the last poll; True on systems without /proc."""
        try:
            status = Path(f"/proc/self/task/{self.thread}/status").read_text(encoding="utf-8")
        except OSError:
            return True
        told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        before, self._wakings = self._wakings, told["voluntary_ctxt_switches"]
        return told["State"].startswith(_SLEEPS) and self._wakings == before


@dataclass
class Alongside:
    """What a step has done so far, and how many more times one side polls whether the other has gone on.

    Polls are counted, not seconds: on a busy machine a poll takes longer, and so does what it waits for. A poll costs
    one unit of patience, and a tenth if backward is running or waits for a CPU. If other threads used more CPU time
    than a poll takes, as a thread that polls itself does, it costs one unit for each poll's worth of that time.
    """

    happened: Sequence[Happening]
    patience: float = 1000

    def let_launch(self) -> None:
        """Wait until another thread, if there is any, has launched a collective in this backward pass."""
        if has_other_threads():
            self._until(lambda: any(one.what == "launched" for one in self._after("returned")), lambda: True)

    def let_go_on(self, number: int, running: Collection[int], backward: Sleeper) -> None:
        """Wait until backward has gone on after the launch of this number, as long as a backward pass is running."""
        self._until(
            lambda: not running or any(one.what == "reached" for one in self._after("launched", number)),
            backward.sleeps,
        )

    def _after(self, what: str, number: int = 0) -> Sequence[Happening]:
        """Return the happenings after the last one of this kind and number; all of them if there is none."""
        at = max((at for at, one in enumerate(self.happened) if (one.what, one.number) == (what, number)), default=-1)
        return self.happened[at + 1 :]

    def _until(self, holds: Callable[[], bool], stands_still: Callable[[], bool]) -> None:
        while self.patience > 0 and not holds():
            before = _others_seconds()
            time.sleep(_LOOK_SECONDS)
            looks = max(1.0, (_others_seconds() - before) / _LOOK_SECONDS)
            self.patience -= looks if stands_still() else _AT_WORK * looks


def _others_seconds() -> float:
    """Return the CPU time of this process's other threads."""
    return time.process_time() - time.thread_time()
