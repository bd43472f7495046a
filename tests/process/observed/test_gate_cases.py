"""What a gate does to single operations: each case runs on two ranks, and checks its results there."""

import pickle

import gate_cases
import pytest

from pytest_ddp.observed import HoldUntilBackward
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.outcomes.outcome import Deadlocked
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

WORLD = World(2, observe=True)


@pytest.mark.parametrize("name", gate_cases.CASES)
def test_case(ranks, name):
    outcomes = ranks.run(WORLD, "gate_cases:run", name.encode(), timeout=60)
    assert not failures(outcomes), str(RankFailure(outcomes, WORLD))


def test_a_wait_under_a_gate_can_deadlock(ranks):
    outcomes = ranks.run(WORLD, "gate_cases:leave", b"", timeout=60)
    (stuck,) = failures(outcomes)
    assert isinstance(stuck, Deadlocked)
    assert "waits in all_reduce #1 float32[3]" in stuck.waits
    assert "which rank 1 never entered: it has returned" in stuck.waits


def test_a_handle_of_an_earlier_test_raises(ranks):
    for target in ("keep", "wait_for_kept_handles"):
        outcomes = ranks.run(WORLD, f"gate_cases:{target}", b"", timeout=60)
        assert not failures(outcomes), str(RankFailure(outcomes, WORLD))


def test_gated_runs_leave_no_groups_behind():
    """A group that is still referenced is never destroyed, and its threads stay."""
    hold = repr(HoldUntilBackward())
    with RankPool() as ranks:
        before = threads(ranks)
        for _ in range(10):
            ranks.run(WORLD, "gate_cases:keep", b"", timeout=60)
            for name in ("WaitingInHook", "ForgottenWait", "ForgottenFuture", "OverlappedWithFutures"):
                outcomes = ranks.run(WORLD, "overlapping:train", pickle.dumps((name, hold, 0)), timeout=60)
                assert not failures(outcomes), str(RankFailure(outcomes, WORLD))
        assert all(now < then + 10 for now, then in zip(threads(ranks), before, strict=True))


def threads(ranks: RankPool) -> list[int]:
    """Return the number of threads of each rank, after garbage is collected and its groups are destroyed."""
    ranks.run(WORLD, "gate_cases:threads", b"", timeout=60)
    return [int(outcome.body) for outcome in ranks.run(WORLD, "gate_cases:threads", b"", timeout=60)]
