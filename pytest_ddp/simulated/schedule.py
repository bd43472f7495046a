"""The choices of a simulation: which rank runs next, and which operation completes next.

A simulation takes all its decisions here, so the list of its choices says all of them. The default, 0, is to go on with
the same rank as long as it can, and to let results land when their rank waits for them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Range = tuple[int, int]


@dataclass(frozen=True)
class Option:
    """Something that may happen next.

    Attributes:
        kind: "run": a rank goes on. "land": the results of an operation land on a rank, before the rank waits for them.
            "leave": a rank that asked whether an operation is complete hears "not yet".
        rank: that rank.
        operation: what the rank enters or waits in, such as "all_reduce#7"; "start" before its first operation.
        group: the name of the operation's group; "" without one.
        peers: the global ranks that take part in the operation.
        touches: the memory that the operation reads or writes on this rank, as (first byte, byte after the last).
    """

    kind: Literal["run", "land", "leave"]
    rank: int
    operation: str = "start"
    group: str = ""
    peers: tuple[int, ...] = ()
    touches: tuple[Range, ...] = ()


class Schedule(Protocol):
    """Decides what happens next."""

    def choose(self, options: Sequence[Option], /) -> int:
        """Return the index of an option; 0 is the default. There are at least two, made when they are read."""
        ...


class Recorded:
    """The schedule of a list of choices; the default when the list is at its end, or has no such option."""

    def __init__(self, choices: Iterable[int] = ()) -> None:
        self._choices = iter(tuple(choices))

    def choose(self, options: Sequence[Option]) -> int:
        """Return the next choice of the list."""
        choice = next(self._choices, 0)
        return choice if 0 <= choice < len(options) else 0


class Clamped(Recorded):
    """As `Recorded`, but a choice that has no option takes the last one: so every choice is one, and shrinks well."""

    def choose(self, options: Sequence[Option]) -> int:
        """Return the next choice of the list."""
        return min(next(self._choices, 0), len(options) - 1)
