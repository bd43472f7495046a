"""Ranks that fail or skip free the ranks that wait for them, and a group is renewed for another run."""

import pytest

from pytest_ddp.outcomes.failure import RankFailure, root_cause
from pytest_ddp.outcomes.hang_diagnosis import peer_left
from pytest_ddp.outcomes.outcome import Died, Raised, Returned, Skipped, Stopped
from pytest_ddp.planning.world import World

LONG = 300.0  # seconds; nothing here may need them


@pytest.mark.parametrize("how", ["skip", "raise"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_fail_or_skip_free_the_ranks_that_wait_for_them(ranks, how, size):
    """No rank is lost. The group cannot be used any more; the same processes form a new one."""
    with ranks.group(World(size)) as group:
        group.grace = LONG
        for _ in range(2):
            pids = [process.pid for process in group.processes]
            outcomes = group.run("rank_targets:one_gives_up", how.encode(), timeout=60, disconnect=True)
            assert isinstance(outcomes[0], Skipped if how == "skip" else Raised)
            assert all(peer_left(outcome) for outcome in outcomes[1:])
            assert group.disconnected
            ranks.renew(group)
            assert not group.disconnected
            assert [process.pid for process in group.processes] == pids
            again = group.run("rank_targets:all_reduce", timeout=60)
            assert all(isinstance(outcome, Returned) for outcome in again)


def test_a_group_is_renewed_with_new_processes_for_lost_ranks(ranks):
    with ranks.group(World(2)) as group:
        first, second = (process.pid for process in group.processes)
        assert isinstance(root_cause(group.run("rank_targets:one_exits", timeout=60)), Died)
        ranks.renew(group)
        assert group.processes[0].pid == first
        assert group.processes[1].pid != second
        assert all(isinstance(outcome, Returned) for outcome in group.run("rank_targets:all_reduce", timeout=60))


def test_a_rank_that_skips_while_others_wait_is_a_disagreement(ranks):
    outcomes = ranks.run(World(2), "rank_targets:one_gives_up", b"skip", timeout=60)
    assert isinstance(outcomes[1], Stopped)
    text = str(RankFailure(outcomes))
    assert text.startswith("the ranks disagree: rank 0 skipped: not me, while rank 1 continued and waited for it; make")
    assert "it waits in all_reduce #2 float32[4], which rank 0 never entered: it has skipped" in text
