"""The next group of the same world takes over the connections of one in which nothing can go on."""

from collections.abc import Iterator

import pytest
import rank_targets

from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Raised, Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

TIMEOUT = 60.0


@pytest.fixture
def pool(ranks: RankPool) -> Iterator[RankPool]:
    """A pool of its own that keeps connections."""
    with ranks.fresh() as fresh:
        fresh.keeps_connections = True
        yield fresh


def bodies(pool: RankPool, target: str, size: int = 2, *, observe: bool = False) -> list[bytes]:
    outcomes = pool.run(World(size, observe=observe), f"{rank_targets.__name__}:{target}", timeout=TIMEOUT)
    assert not failures(outcomes), failures(outcomes)
    return [outcome.body for outcome in outcomes if isinstance(outcome, Returned)]


def test_runs_of_one_world_share_a_process_group(pool):
    names = set()
    for _ in range(3):
        assert bodies(pool, "number_of_its_group") == [b"0", b"0"]
        names.add(pool.latest_group)
    assert len(names) == 3, "to the flight recorder, each is a group of its own"


def test_runs_that_are_observed_share_a_process_group_of_their_own(pool):
    assert bodies(pool, "number_of_its_group") == [b"0", b"0"]
    for _ in range(2):
        assert bodies(pool, "number_of_its_group", observe=True) == [b"1", b"1"]
    assert bodies(pool, "number_of_its_group") == [b"2", b"2"]


@pytest.mark.parametrize("observe", [False, True])
def test_a_group_that_is_prepared_is_not_needed(pool, observe):
    bodies(pool, "number_of_its_group", observe=observe)
    pool.prepare(World(2, observe=observe))
    assert bodies(pool, "number_of_its_group", observe=observe) == [b"0", b"0"]


@pytest.mark.parametrize("observe", [False, True])
@pytest.mark.parametrize(
    "between",
    [
        "one_launches_more",
        "makes_a_group",
        "leaves_a_thread",
        "leaves_a_message",
        "destroys_its_group",
    ],
)
def test_after_a_run_in_which_something_may_go_on_there_is_a_new_group(pool, between, observe):
    bodies(pool, "number_of_its_group", observe=observe)
    bodies(pool, between, observe=observe)
    assert bodies(pool, "number_of_its_group", observe=observe) == [b"1", b"1"]


def test_after_a_run_in_which_ranks_launched_different_collectives_there_is_a_new_group(pool):
    """Only without observing: an observed rank fails at once."""
    bodies(pool, "number_of_its_group")
    bodies(pool, "one_launches_another")
    assert bodies(pool, "number_of_its_group") == [b"1", b"1"]


def test_after_a_run_that_failed_there_is_a_new_group(pool):
    bodies(pool, "number_of_its_group")
    assert failures(pool.run(World(2), f"{rank_targets.__name__}:all_raise", timeout=TIMEOUT))
    assert bodies(pool, "number_of_its_group") == [b"1", b"1"]


def test_another_world_gets_a_new_group(pool):
    bodies(pool, "number_of_its_group")
    assert bodies(pool, "number_of_its_group", size=1) == [b"1"]
    assert bodies(pool, "number_of_its_group") == [b"2", b"1"]


@pytest.mark.parametrize("observe", [False, True])
def test_each_run_counts_its_operations_from_one_on(pool, observe):
    bodies(pool, "number_of_its_group", observe=observe)
    outcomes = pool.run(World(2, observe=observe), f"{rank_targets.__name__}:one_raises", timeout=TIMEOUT)
    assert isinstance(outcomes[1], Raised)
    assert [one.number for one in outcomes[0].collectives] == [1]


def test_each_run_has_the_variables_of_its_rank(pool):
    bodies(pool, "sets_its_rank")
    assert [body.split()[2] for body in bodies(pool, "place")] == [b"0", b"1"]


def test_other_pools_give_each_run_a_new_group(ranks):
    with ranks.fresh() as fresh:
        assert [bodies(fresh, "number_of_its_group") for _ in range(2)] == [[b"0", b"0"], [b"1", b"1"]]
