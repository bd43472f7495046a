"""Aspects: what a component promises, and the points of each promise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Aspect:
    """A part of what a component promises. Its checks have equal shares of its points.

    Attributes:
        name: what is promised, in a few words.
        points: the marks of its checks together.
        checks: the ids of its checks, all of them core checks of the component.
        essential: whether the component's name promises it.
    """

    name: str
    points: float
    checks: tuple[str, ...]
    essential: bool = False
