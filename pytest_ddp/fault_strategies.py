"""Hypothesis strategies of faults. Plans shrink to few faults, early operations and low ranks."""

from collections.abc import Sequence

from hypothesis import strategies as st

from pytest_ddp.planning.faults import Corrupt, Crash, Delay, Fault, Partition


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
