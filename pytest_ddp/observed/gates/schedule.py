"""When and in which order the operations of a rank complete, as plain data that Hypothesis can draw.

Operations are numbered from 1, in the order in which the rank launches them under the gate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """Operations complete in the order of their launch; subclasses choose another order.

    Attributes:
        holds_in_backward: whether no operation completes while a backward pass has gradients to compute.
        spoils: whether the program gets NaN in place of results.
    """

    holds_in_backward: ClassVar[bool] = False
    spoils: ClassVar[bool] = False

    def place(self, number: int) -> tuple[Any, int]:
        """Return the sort key of an operation: lower ones complete first."""
        return 0, number

    def ahead_of(self, number: int, in_flight: Iterable[int]) -> list[int]:
        """Return the operations in flight that complete before this one, in order."""
        return sorted((other for other in in_flight if self.place(other) < self.place(number)), key=self.place)


@dataclass(frozen=True)
class HoldUntilBackward(Schedule):
    """No operation completes before backward has computed all its gradients; then each completes when waited for.

    A wait before that, inside backward, raises `BlocksInsideBackward`.
    """

    holds_in_backward = True

    def ahead_of(self, number: int, in_flight: Iterable[int]) -> list[int]:  # noqa: ARG002  in no order
        """Return nothing: an operation completes only when it is waited for."""
        return []


@dataclass(frozen=True)
class InOrder(Schedule):
    """Operations complete in the order of these numbers, then all others in the order of their launch."""

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.order)) < len(self.order) or any(number < 1 for number in self.order):
            raise UsageError(f"an order names operations by their numbers from 1, each once; got {self!r}")

    def place(self, number: int) -> tuple[Any, int]:
        """Return the operation's index in the order; the order's length if it is not there."""
        return self.order.index(number) if number in self.order else len(self.order), number


@dataclass(frozen=True)
class Delay(Schedule):
    """The operation with this number completes after all others in flight."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise UsageError(f"operations are numbered from 1; got {self!r}")

    def place(self, number: int) -> tuple[Any, int]:
        """Return a key that is greater for the delayed operation than for all others."""
        return number == self.number, number


@dataclass(frozen=True)
class Shuffled(Schedule):
    """Operations complete in a pseudorandom order."""

    seed: int

    def place(self, number: int) -> tuple[Any, int]:
        """Return a pseudorandom key that depends only on the seed and the number."""
        return Random(f"{self.seed} {number}").random(), number  # noqa: S311  no secret


@dataclass(frozen=True)
class Spoiled(Schedule):
    """Floating-point results are NaN for good: what the program computes with them is NaN, and nothing else is."""

    spoils = True
