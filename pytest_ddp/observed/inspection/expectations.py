"""The numbers that a test expects, and the words in which assertions describe operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry, Moment

_LISTED = 10  # operations at either end of a long list


@dataclass(frozen=True)
class Bounds:
    """An exact number, or inclusive bounds."""

    exactly: int | None = None
    at_least: int | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        bounded = self.at_least is not None or self.at_most is not None
        if (self.exactly is not None) == bounded:
            raise UsageError(f"give an exact number, or at_least=, at_most= or both; got {self!r}")

    def allow(self, number: int) -> bool:
        """Whether the number is within the bounds."""
        return (
            self.exactly in {None, number}
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
        )

    def __str__(self) -> str:
        words = {"": self.exactly, "at least ": self.at_least, "at most ": self.at_most}
        return " and ".join(f"{word}{number:,}" for word, number in words.items() if number is not None)


def operations_text(selected: str) -> str:
    """Return "operations (all_reduce inside backward)", where `selected` describes the selection."""
    return f"operations ({selected})" if selected else "operations"


def list_text(entries: Sequence[Entry], describe: Callable[[Entry], str] = lambda _: "") -> str:
    """Return one line for each operation, with its description; the first and the last lines of a long list."""
    lines = [f"\n  {entry}{describe(entry)}" for entry in entries]
    left_out = len(lines) - 2 * _LISTED
    if left_out > 0:
        lines[_LISTED:-_LISTED] = [f"\n  ... {left_out} operations left out ..."]
    return "".join(lines)


def launch_text(entry: Entry) -> str:
    """Describe when an operation was launched."""
    return f": launched {_moment_text(entry.launched)}"


def first_wait_text(entry: Entry) -> str:
    """Describe when an operation was first waited for."""
    return ": never waited for" if entry.waited is None else f": first waited for {_moment_text(entry.waited)}"


def _moment_text(moment: Moment) -> str:
    if moment.backward is None:
        return "outside backward"
    return f"inside backward {moment.backward}, with {moment.ready} of {moment.expected} gradients ready"
