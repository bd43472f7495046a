"""A group that ranks join ahead of time: the next run takes it if it has the same world."""

from collections.abc import Iterator

import psutil
import pytest
import rank_targets

from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

TIMEOUT = 60.0


@pytest.fixture
def pool(ranks: RankPool) -> Iterator[RankPool]:
    """A pool of two ranks that prepares no group by itself."""
    with ranks.fresh() as fresh:
        bodies(fresh, 2)
        yield fresh


def bodies(pool: RankPool, size: int, target: str = "process_id") -> list[bytes]:
    outcomes = pool.run(World(size), f"{rank_targets.__name__}:{target}", timeout=TIMEOUT)
    assert not failures(outcomes), failures(outcomes)
    return [outcome.body for outcome in outcomes if isinstance(outcome, Returned)]


def test_the_next_run_in_the_same_world_takes_it(pool):
    pool.prepare(World(2))
    prepared = pool.latest_group
    assert bodies(pool, 2, "all_reduce") == [b"8", b"8"]
    assert pool.latest_group == prepared


@pytest.mark.parametrize("size", [1, 3])
def test_a_run_in_another_world_does_not_take_it(pool, size):
    pool.prepare(World(2))
    prepared = pool.latest_group
    assert bodies(pool, size, "all_reduce") == [str(4 * size).encode()] * size
    assert pool.latest_group != prepared


def test_no_group_is_prepared_if_ranks_are_missing(pool):
    before = pool.latest_group
    pool.prepare(World(3))
    assert pool.latest_group == before
    assert len(pool._processes) == 2


def test_a_rank_that_dies_in_a_prepared_group_is_replaced(pool):
    doomed = bodies(pool, 2)[1]
    pool.prepare(World(2))
    process = psutil.Process(int(doomed))
    process.kill()
    process.wait(TIMEOUT)  # SIGKILL takes effect later
    assert doomed not in bodies(pool, 2)
