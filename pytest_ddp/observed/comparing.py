"""Whether two ranks have entered the same collectives in the same order."""

from collections.abc import Sequence
from itertools import zip_longest

from pytest_ddp.observed.matching import differences
from pytest_ddp.observed.notice import Notice


def parting(mine: Sequence[Notice], theirs: Sequence[Notice], ranks: tuple[int, int]) -> str | None:
    """Say where the collectives of two ranks part, those of the groups that both belong to; None if nowhere."""
    here, there = (_shared(notices, ranks) for notices in (mine, theirs))
    for index, (left, right) in enumerate(zip_longest(here, there)):
        if left is None or right is None or left.group != right.group or differences(left, right):
            return _told(
                index, dict(zip(ranks, (left, right), strict=True)), dict(zip(ranks, (here, there), strict=True))
            )
    return None


def _shared(notices: Sequence[Notice], ranks: tuple[int, int]) -> list[Notice]:
    return [notice for notice in notices if notice.peer is None and set(ranks) <= set(notice.ranks)]


def _told(index: int, at: dict[int, Notice | None], all_of: dict[int, list[Notice]]) -> str:
    """Say what each of two ranks has entered at a place where they part."""
    first, second = (f"rank {rank} {_entered(notice, len(all_of[rank]))}" for rank, notice in at.items())
    return f"collective {index + 1} differs: {first}, where {second}"


def _entered(notice: Notice | None, entered: int) -> str:
    return f"has entered no more than {entered}" if notice is None else f"entered {notice}"
