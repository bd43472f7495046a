"""Strategies of Hypothesis for tests on simulated ranks; imports no torch.

from pytest_ddp.strategies import schedules

@distributed(world_size=4, backend="sim", schedule=schedules())
def test_any_order(ddp): ...

Plans of faults shrink to few faults, early operations and low ranks.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from pytest_ddp.planning.faults import Corrupt, Crash, Delay, Fault, Partition
from pytest_ddp.schedule_text import format_schedule

# Decisions that follow the default, and the largest option. Tests of few decisions need many deviations that are close
# to one another.
_DEVIATIONS = ((2, 3), (12, 3), (400, 64))


class Choices(tuple[int, ...]):
    """The choices of a schedule; shown as `schedule=` and `--ddp-schedule` accept them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(format_schedule(self))


def schedules(max_deviations: int = 20) -> st.SearchStrategy[Choices]:
    """Draw the choices of a schedule: which rank runs next, and which results land early.

    A schedule differs from the default one in at most `max_deviations` decisions. It shrinks to fewer of them.
    """
    deviations = (st.tuples(st.integers(0, gap), st.integers(1, option)) for gap, option in _DEVIATIONS)
    return st.lists(st.one_of(*deviations), max_size=max_deviations).map(_choices)


def _choices(deviations: list[tuple[int, int]]) -> Choices:
    """Return the choices that follow the default for `gap` decisions, and then take `option`, for each pair of both."""
    return Choices(choice for gap, option in deviations for choice in (*[0] * gap, option))


def crashes(world_size: int, operations: Sequence[str]) -> st.SearchStrategy[Crash]:
    """Return a strategy of crashes of one rank at one of the operations, the first ones first."""
    return st.builds(Crash, rank=_ranks(world_size), at=st.sampled_from(operations))


def delays(world_size: int, operations: Sequence[str]) -> st.SearchStrategy[Delay]:
    """Return a strategy of delays of one rank, for one to three turns."""
    return st.builds(Delay, rank=_ranks(world_size), at=st.sampled_from(operations), turns=st.integers(1, 3))


def corruptions(world_size: int, operations: Sequence[str]) -> st.SearchStrategy[Corrupt]:
    """Return a strategy of single flipped bits."""
    return st.builds(Corrupt, rank=_ranks(world_size), at=st.sampled_from(operations), bit=st.integers(0, 1023))


def partitions(world_size: int, operations: Sequence[str]) -> st.SearchStrategy[Partition]:
    """Return a strategy of partitions into two sides, the first of which has the low ranks."""

    def parted(size: int, at: str, until: str) -> Partition:
        return Partition((tuple(range(size)), tuple(range(size, world_size))), at, until)

    return st.builds(
        parted, st.integers(1, max(world_size - 1, 1)), st.sampled_from(operations), st.sampled_from(["", *operations])
    )


def plans(world_size: int, operations: Sequence[str], *, most: int = 2) -> st.SearchStrategy[list[Fault]]:
    """Return a strategy of plans: no fault to `most` faults of any kind.

    Args:
        world_size: how many ranks the test has.
        operations: where faults may happen, such as "all_reduce#7"; `operations_of` lists those of a run.
        most: how many faults a plan has at most.
    """
    kinds: list[st.SearchStrategy[Fault]] = [
        kind(world_size, operations) for kind in (crashes, delays, corruptions, partitions)
    ]
    return st.lists(st.one_of(kinds), max_size=most)


def _ranks(world_size: int) -> st.SearchStrategy[int]:
    return st.integers(0, world_size - 1)
