"""Says when and in which order the operations of a rank complete: plain data, which Hypothesis may draw.

Operations are counted from 1, in the order in which the rank launches them under the gate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The order in which operations in flight complete; here that of their launch."""

    @property
    def holds_in_backward(self) -> bool:
        """Whether nothing completes as long as a backward pass has gradients to compute."""
        return False

    def place(self, number: int) -> tuple[Any, int]:
        """Return where an operation stands in the order: those with less come before it."""
        return 0, number

    def ahead_of(self, number: int, in_flight: Iterable[int]) -> list[int]:
        """Return which of the operations in flight complete before this one, in order."""
        return sorted((other for other in in_flight if self.place(other) < self.place(number)), key=self.place)


@dataclass(frozen=True)
class HoldUntilBackward(Schedule):
    """Nothing completes before backward has computed all its gradients; then each completes as it is waited for.

    Who waits earlier, inside backward, gets `BlocksInsideBackward`.
    """

    @property
    def holds_in_backward(self) -> bool:
        """It does."""
        return True

    def ahead_of(self, number: int, in_flight: Iterable[int]) -> list[int]:  # noqa: ARG002  nothing comes unasked
        """Return nothing: what is not waited for does not complete."""
        return []


@dataclass(frozen=True)
class InOrder(Schedule):
    """Operations complete in the order of these numbers; others after them, in the order of their launch."""

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.order)) < len(self.order) or any(number < 1 for number in self.order):
            raise UsageError(f"an order names operations by their numbers from 1, each once; got {self!r}")

    def place(self, number: int) -> tuple[Any, int]:
        """Return its place among the numbers, or the one after all of them."""
        return self.order.index(number) if number in self.order else len(self.order), number


@dataclass(frozen=True)
class Delay(Schedule):
    """The operation of this number completes after all others in flight."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise UsageError(f"operations are numbered from 1; got {self!r}")

    def place(self, number: int) -> tuple[Any, int]:
        """Return the last place for the one that is delayed."""
        return number == self.number, number


@dataclass(frozen=True)
class Shuffled(Schedule):
    """Operations complete in an order drawn from a seed."""

    seed: int

    def place(self, number: int) -> tuple[Any, int]:
        """Return a place that depends on the seed and the number alone."""
        return Random(f"{self.seed} {number}").random(), number  # noqa: S311  no secret
