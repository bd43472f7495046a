"""The logical clock of a rank. It counts events, so two runs of the same program give the same times."""

import itertools
from dataclasses import dataclass, field
from time import monotonic_ns  # imported by name, because tests replace functions of the module `time`

from pytest_ddp.observed.events import Moment


@dataclass
class Backward:
    """A running backward pass that has computed `ready` of `expected` gradients of parameters."""

    number: int
    line: str
    expected: int
    ready: int = 0


@dataclass
class Clock:
    """Counts events, and knows which backward passes are running.

    Attributes:
        running: the running backward passes, the innermost last (reentrant checkpoints nest them).
        nanoseconds: the machine's monotonic time at each logical time. Traces show it; no assertion may use it.
    """

    running: list[Backward] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    _times: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def time(self) -> int:
        """Advance the clock; return the new time."""
        self.nanoseconds.append(monotonic_ns())
        return next(self._times)

    def tick(self) -> Moment:
        """Advance the clock; return the new time and the progress of the innermost backward pass."""
        time = self.time()
        if not self.running:
            return Moment(time)
        inner = self.running[-1]
        return Moment(time, inner.number, inner.ready, inner.expected)

    @property
    def computes_gradients(self) -> bool:
        """Whether a running backward pass has yet to compute gradients of parameters."""
        return any(backward.ready < backward.expected for backward in self.running)

    def begin_backward(self, line: str, expected: int) -> Backward:
        """Return a new backward pass, which is now the innermost one."""
        backward = Backward(next(self._numbers), line, expected)
        self.running.append(backward)
        return backward

    def end_backward(self, backward: Backward) -> None:
        """Remove a backward pass from the running ones."""
        self.running.remove(backward)
