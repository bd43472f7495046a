"""What happens on an observed rank, in the order of its clock."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class CollectiveLaunched:
    """The operation `number` (`Entry.number`) was entered."""

    time: int
    number: int


@dataclass(frozen=True)
class CollectiveWaited:
    """Somebody began to wait for the operation `number`, for the first time."""

    time: int
    number: int


@dataclass(frozen=True)
class CollectiveCompleted:
    """It became known that the operation `number` is over."""

    time: int
    number: int


@dataclass(frozen=True)
class BackwardBegan:
    """The backward pass `backward` (from 1) began at `line`; it will compute `expected` gradients of parameters."""

    time: int
    backward: int
    line: str
    expected: int


@dataclass(frozen=True)
class GradientReady:
    """A parameter's gradient was computed, and is about to be added to its `.grad`.

    `parameter` is the name that `ddp.collectives.name(model)` gave it, or else says its shape.
    """

    time: int
    backward: int
    parameter: str


@dataclass(frozen=True)
class BackwardReturned:
    """The backward pass `backward` returned, or raised."""

    time: int
    backward: int


Event: TypeAlias = (
    CollectiveLaunched | CollectiveWaited | CollectiveCompleted | BackwardBegan | GradientReady | BackwardReturned
)
