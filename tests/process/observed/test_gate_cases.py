"""What a gate does to single operations: each case runs on two ranks, and checks what it sees there."""

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


def test_a_held_wait_in_vain_is_a_deadlock_like_any_other(ranks):
    outcomes = ranks.run(WORLD, "gate_cases:leave", b"", timeout=60)
    (stuck,) = failures(outcomes)
    assert isinstance(stuck, Deadlocked)
    assert "waits in all_reduce #1 float32[3]" in stuck.waits
    assert "which rank 1 never entered: it has returned" in stuck.waits


def test_a_handle_of_a_test_that_is_over_says_so(ranks):
    for target in ("keep", "wait_for_what_was_kept"):
        outcomes = ranks.run(WORLD, f"gate_cases:{target}", b"", timeout=60)
        assert not failures(outcomes), str(RankFailure(outcomes, WORLD))


def test_gated_runs_leave_no_groups_behind():
    """A group has threads: one that something still refers to is never destroyed."""
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
    """Return how many threads each rank has, once garbage is collected and the groups in it are destroyed."""
    ranks.run(WORLD, "gate_cases:threads", b"", timeout=60)
    return [int(outcome.body) for outcome in ranks.run(WORLD, "gate_cases:threads", b"", timeout=60)]
