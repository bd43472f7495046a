"""How many of something a test expects."""

from dataclasses import dataclass

from pytest_ddp.errors import UsageError


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
