"""Says in words what a rank waits for, and why it will not come."""

from collections.abc import Mapping

from pytest_ddp.observed.deadlock import Standing, Want, want
from pytest_ddp.observed.notice import ANYONE, Notice
from pytest_ddp.world import rank_list


def wait_text(rank: int, standings: Mapping[int, Standing], *, chain: bool = False) -> str:
    """Say what a rank waits for; with `chain`, also what the ranks that it waits for wait for in turn.

    Returns:
        A clause such as "waits in all_reduce #2 float32[4] at train.py:31, which rank 1 never entered: it has
        returned"; "" for a rank that does not wait.
    """
    return _clause(rank, standings, (rank,) if chain else None)


def _clause(rank: int, standings: Mapping[int, Standing], told: tuple[int, ...] | None) -> str:
    notice = standings[rank].waits_in
    if notice is None:
        return ""
    wanted = want(notice, standings)
    unlike = [f"where rank {other} called {theirs}" for other, theirs in wanted.unlike.items()]
    absent = [_absence(notice, ranks, doing) for ranks, doing in _alike(wanted, standings, told)]
    return ", ".join([f"waits in {notice}", *unlike, *filter(None, absent)])


def _absence(notice: Notice, ranks: list[int], doing: str) -> str:
    """Say that some ranks are missing in an operation, and what they do instead."""
    if notice.peer == ANYONE:
        return f"to which {rank_list(ranks)} never sent" + (f": {_subject(ranks)} {doing}" if doing else "")
    if notice.peer is not None:
        return f"which {doing}" if doing else ""
    return f"which {rank_list(ranks)} never entered" + (f": {_subject(ranks)} {doing}" if doing else "")


def _subject(ranks: list[int]) -> str:
    return "each" if len(ranks) > 1 else "it"


def _alike(
    wanted: Want, standings: Mapping[int, Standing], told: tuple[int, ...] | None
) -> list[tuple[list[int], str]]:
    """Group the ranks that are missing by what they do instead."""
    doing: dict[str, list[int]] = {}
    for rank in wanted.absent:
        doing.setdefault(_doing(standings[rank], standings, told), []).append(rank)
    return [(ranks, what) for what, ranks in doing.items()]


def _doing(standing: Standing, standings: Mapping[int, Standing], told: tuple[int, ...] | None) -> str:
    if standing.over:
        return f"has {standing.over}"
    if told is None or standing.rank in told:
        return ""
    return _clause(standing.rank, standings, (*told, standing.rank))
