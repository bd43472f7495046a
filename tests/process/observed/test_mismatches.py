"""Ranks that do not call the same are told so at once: before the operation is issued, and without any timeout."""

import re

import mismatch_targets
import pytest

from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

LONG = 300.0  # seconds; nothing here may need them
WORLD = World(2, observe=True)
THE_SAME = {
    "operation": "must call the same collectives in the same order",
    "operation_later": "must call the same collectives in the same order",
    "barrier": "must call the same collectives in the same order",
    "objects": "must call the same collectives in the same order",
    "shape": "must call it with the same shape",
    "layout": "must call it with the same shape",
    "order": "must call it with the same shape",
    "order_of_handles": "must call it with the same shape",
    "gathered_tensor": "must call it with the same shape",
    "reduced_shards": "must call it with the same shape",
    "subgroup": "must call it with the same shape",
    "dtype": "must call it with the same dtype",
    "reduction": "must call it with the same reduction",
    "root": "must call it with the same root",
    "reduce_root": "must call it with the same root",
    "gather_root": "must call it with the same root",
    "gathered_size": r"rank \d sends \d elements to rank \d, which receives \d",
    "gather_size": "rank 1 sends 5 elements to rank 0, which receives 4",
    "scatter_size": "rank 0 sends 4 elements to rank 1, which receives 5",
    "splits": "rank 0 sends 2 elements to rank 1, which receives 3",
    "message_dtype": "a send and its receive must agree in dtype",
    "message_size": "a send and its receive must agree in size",
}


@pytest.fixture(scope="module")
def ranks():
    """Ranks of their own, whose grace is no help."""
    with RankPool(grace=LONG) as pool:
        yield pool


def differ(ranks: RankPool, name: str):
    return ranks.run(WORLD, f"{mismatch_targets.__name__}:differ", name.encode(), timeout=LONG)


@pytest.mark.parametrize("name", mismatch_targets.CALLS)
def test_what_differs_is_named_with_both_ranks_and_both_lines(ranks, name):
    outcomes = differ(ranks, name)
    root = root_cause(outcomes)
    assert isinstance(root, Raised), outcomes
    assert root.kind == "CollectiveMismatch"
    assert re.search(THE_SAME[name], root.message)
    assert re.match(
        r"rank (\d) calls \w+ .*mismatch_targets\.py:\d+, where rank (?!\1)\d called \w+ .*mismatch_targets\.py:\d+; ",
        root.message,
    )
    assert not any(isinstance(outcome, TimedOut | Died | Deadlocked) for outcome in failures(outcomes))


def test_the_message_says_what_each_rank_called(ranks):
    message = root_cause(differ(ranks, "dtype")).message
    here = r"\S*mismatch_targets\.py:\d+"
    one, other = rf"rank 1 call\w* all_reduce #2 float64\[4\] at {here}", r"rank 0 call\w* all_reduce #2 float32\[4\]"
    assert re.search(one, message)
    assert re.search(other, message)


def test_who_waits_for_the_rank_that_raised_is_freed_and_told_of(ranks):
    text = str(RankFailure(differ(ranks, "operation_later"), WORLD))
    assert re.search(r"rank 0: .*it waits in all_reduce #2 float32\[4\].*, where rank 1 called broadcast #2", text)
