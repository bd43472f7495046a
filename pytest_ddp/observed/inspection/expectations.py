"""How many of something a test expects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry, Moment


@dataclass(frozen=True)
class Limits:
    """An exact number, or bounds that are part of what they admit."""

    exactly: int | None = None
    at_least: int | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        bounded = self.at_least is not None or self.at_most is not None
        if (self.exactly is not None) == bounded:
            raise UsageError(
                f"say how many are expected: an exact number, or at_least=, at_most= or both; got {self!r}"
            )

    def admit(self, number: int) -> bool:
        """Whether so many are as expected."""
        return (
            self.exactly in {None, number}
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
        )

    def __str__(self) -> str:
        words = {"": self.exactly, "at least ": self.at_least, "at most ": self.at_most}
        return " and ".join(f"{word}{number:,}" for word, number in words.items() if number is not None)


# What is said of operations that are not as a test expects them.

_SHOWN = 10  # at either end of a long list


def operations(said: str) -> str:
    """Return "operations (all_reduce inside backward)", given what was selected."""
    return f"operations ({said})" if said else "operations"


def listed(entries: Sequence[Entry], told: Callable[[Entry], str] = lambda _: "") -> str:
    """Return operations one below the other, each with what is told of it; of very many the first and the last."""
    lines = [f"\n  {entry}{told(entry)}" for entry in entries]
    left_out = len(lines) - 2 * _SHOWN
    if left_out > 0:
        lines[_SHOWN:-_SHOWN] = [f"\n  ... {left_out} operations left out ..."]
    return "".join(lines)


def launched(entry: Entry) -> str:
    """Say when an operation was launched."""
    return f": launched {when(entry.launched)}"


def waited(entry: Entry) -> str:
    """Say when an operation was first waited for."""
    return ": never waited for" if entry.waited is None else f": first waited for {when(entry.waited)}"


def when(moment: Moment) -> str:
    """Say where autograd was."""
    if moment.backward is None:
        return "outside backward"
    return f"inside backward {moment.backward}, with {moment.ready} of {moment.expected} gradients ready"
