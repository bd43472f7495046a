"""Threads of a submission's own that communicate beside backward.

What such a thread does comes when the interpreter lets it, not when a gradient is ready. So that what is seen is the
program's order and not chance, each gives the other time: backward, before its last layer, until something has been
launched; the thread, before it waits, until backward has gone on.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from conformance.protocol.messages import Happening
from conformance.ranks.asleep import Sleeper
from pytest_ddp.protocol.flight_recorder import has_other_threads

_LOOK_SECONDS = 0.001
_AT_WORK = 0.1


@dataclass
class Alongside:
    """What a step has done so far, and how many times more one side of it looks whether the other has gone on.

    Looks are counted, not seconds: where the machine is busy they take longer, as does what they wait for. A look that
    finds backward at work, or kept from it by the machine, counts as a tenth; one in which other threads have had more
    processor time than a look takes, as one that polls has, counts as so many.
    """

    happened: Sequence[Happening]
    patience: float = 1000

    def let_launch(self) -> None:
        """Let other threads, if there are any, launch something in this backward pass, where nothing has been yet."""
        if has_other_threads():
            self._until(lambda: any(one.what == "launched" for one in self._after("returned")), lambda: True)

    def let_go_on(self, number: int, running: Collection[int], backward: Sleeper) -> None:
        """Let backward, in its thread, compute something after the launch of this number, as long as a pass runs."""
        self._until(
            lambda: not running or any(one.what == "reached" for one in self._after("launched", number)),
            backward.sleeps,
        )

    def _after(self, what: str, number: int = 0) -> Sequence[Happening]:
        """Return what has happened since this did last, or all if it did not."""
        at = max((at for at, one in enumerate(self.happened) if (one.what, one.number) == (what, number)), default=-1)
        return self.happened[at + 1 :]

    def _until(self, holds: Callable[[], bool], stands_still: Callable[[], bool]) -> None:
        while self.patience > 0 and not holds():
            before = _others_seconds()
            time.sleep(_LOOK_SECONDS)
            looks = max(1.0, (_others_seconds() - before) / _LOOK_SECONDS)
            self.patience -= looks if stands_still() else _AT_WORK * looks


def _others_seconds() -> float:
    """Return the processor time of this process's other threads."""
    return time.process_time() - time.thread_time()
