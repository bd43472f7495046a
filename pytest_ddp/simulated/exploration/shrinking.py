"""Makes the choices of a failing run as close to the default as they can be: few deviations, early options.

A deviation is a choice that is not 0. The search removes groups of deviations, from halves of them down to single ones
(Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), then lowers those that are left.
What is returned cannot lose one more deviation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_ddp.simulated.schedule import Option, Recorded

Choices = tuple[int, ...]
Fails = Callable[[Choices], list[int] | None]


@dataclass(frozen=True)
class Deviation:
    """A decision that was not the default.

    Attributes:
        decision: its place in the list of choices.
        choice: the option that was taken.
        text: what happened, in words, and what the default would have been.
    """

    decision: int
    choice: int
    text: str

    def __str__(self) -> str:
        return f"decision {self.decision}: {self.text}"


def fewest_deviations(choices: Choices, fails: Fails) -> Choices:
    """Return choices that still fail, of which no deviation can be left out.

    Args:
        choices: a list that fails.
        fails: runs a list of choices. If they fail in the same way, it returns how many options each decision had.
    """
    kept = _without_groups({place: choice for place, choice in enumerate(choices) if choice}, fails)
    while (fewer := _cut(kept, fails)) is not None:
        kept = _without_groups(fewer, fails)
    return _list(_lowered(kept, fails))


def _cut(kept: dict[int, int], fails: Fails) -> dict[int, int] | None:
    """Leave out the last deviations, and choose another option in the last one that is left."""
    sizes = fails(_list(kept)) or []
    places = list(kept)
    for count in range(1, len(places)):
        before = {place: kept[place] for place in places[: count - 1]}
        for place in range(max(before, default=-1) + 1, places[count - 1] + 1):
            for choice in range(1, sizes[place] if place < len(sizes) else 0):
                if fails(_list({**before, place: choice})) is not None:
                    return {**before, place: choice}
    return None


def _lowered(kept: dict[int, int], fails: Fails) -> dict[int, int]:
    """Take the first option that fails in each deviation."""
    for place, choice in kept.items():
        for lower in range(1, choice):
            if fails(_list({**kept, place: lower})) is not None:
                kept = {**kept, place: lower}
                break
    return kept


def _without_groups(kept: dict[int, int], fails: Fails) -> dict[int, int]:
    size = len(kept)
    while size and kept:
        smaller = next((left for left in _leaving_out(kept, size) if fails(_list(left)) is not None), None)
        if smaller is not None:
            kept = smaller
        elif size == 1:
            break
        size = min(size if smaller is not None else size // 2, len(kept))
    return kept


def _leaving_out(kept: dict[int, int], size: int) -> Iterator[dict[int, int]]:
    places = list(kept)
    for begin in range(0, len(places), size):
        yield {place: kept[place] for place in places[:begin] + places[begin + size :]}


def _list(deviations: dict[int, int]) -> Choices:
    return tuple(deviations.get(place, 0) for place in range(max(deviations, default=-1) + 1))


class Noting:
    """Replays choices, and notes the deviations in words.

    Attributes:
        deviations: those that were taken so far.
        sizes: how many options each decision had.
        taken: the options that were taken: not those of the list for which there was no option.
    """

    def __init__(self, choices: Choices) -> None:
        self._recorded = Recorded(choices)
        self.sizes: list[int] = []
        self.taken: list[int] = []
        self.deviations: list[Deviation] = []

    def choose(self, options: Sequence[Option]) -> int:
        """Return the next choice of the list."""
        choice = self._recorded.choose(options)
        if choice:
            text = f"{_words(options[choice])} (default: {_words(options[0])})"
            self.deviations.append(Deviation(len(self.sizes), choice, text))
        self.sizes.append(len(options))
        self.taken.append(choice)
        return choice


def _words(option: Option) -> str:
    if option.kind == "land":
        return f"{option.operation} lands on rank {option.rank}"
    if option.kind == "leave":
        return f"rank {option.rank} is told that {option.operation} is not complete yet"
    if option.operation == "start":
        return f"rank {option.rank} starts"
    return f"rank {option.rank} goes on from {option.operation}"
