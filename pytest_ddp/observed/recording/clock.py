"""A rank's logical clock, and where its autograd stands.

Clock times are counts, so they compare exactly, and two runs of the same program give the same ones.
"""

import itertools
from dataclasses import dataclass, field

# By its own name: tests replace the functions of `time`.
from time import monotonic_ns

from pytest_ddp.observed.events import Moment


@dataclass
class Backward:
    """A backward pass that is running: how many gradients of parameters it has computed, of how many."""

    number: int
    line: str
    expected: int
    ready: int = 0


@dataclass
class Clock:
    """Counts events.

    Attributes:
        running: the backward passes that are running, the innermost last (reentrant checkpoints nest them).
        nanoseconds: when each time was, by the machine's monotonic clock: to be shown, never to be judged by.
    """

    running: list[Backward] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    _times: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def time(self) -> int:
        """Return the next time."""
        self.nanoseconds.append(monotonic_ns())
        return next(self._times)

    def tick(self) -> Moment:
        """Return the next moment."""
        time = self.time()
        if not self.running:
            return Moment(time)
        inner = self.running[-1]
        return Moment(time, inner.number, inner.ready, inner.expected)

    @property
    def computes_gradients(self) -> bool:
        """Whether a backward pass that is running has gradients of parameters to compute."""
        return any(backward.ready < backward.expected for backward in self.running)

    def begin_backward(self, line: str, expected: int) -> Backward:
        """Let a backward pass begin."""
        backward = Backward(next(self._numbers), line, expected)
        self.running.append(backward)
        return backward

    def end_backward(self, backward: Backward) -> None:
        """Let a backward pass end."""
        self.running.remove(backward)
