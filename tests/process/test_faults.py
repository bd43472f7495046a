"""Every way a rank can misbehave is told apart, named with its rank, and leaves the next run unharmed."""

import pytest
import rank_targets

from pytest_ddp.failure import RankFailure, peer_left, root_cause
from pytest_ddp.outcome import Died, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.world import World

HANG_SECONDS = 3.0  # long enough for a loaded machine to reach the hang


def run(ranks, target, payload: bytes = b"", timeout: float = 60.0):
    return ranks.run(World(2), f"rank_targets:{target.__name__}", payload, timeout=timeout)


@pytest.fixture(autouse=True)
def next_run_is_unharmed(ranks):
    yield
    assert all(isinstance(outcome, Returned) for outcome in run(ranks, rank_targets.all_reduce))


def test_one_rank_raises_while_the_other_waits(ranks):
    outcomes = run(ranks, rank_targets.one_raises)
    root = root_cause(outcomes)
    assert isinstance(root, Raised)
    assert (root.rank, root.kind, root.message) == (1, "ValueError", "rank 1 has had enough")
    assert isinstance(outcomes[0], Stopped)
    assert outcomes[0].last_collective == "all_reduce #1 float32[4]"
    assert "in all_reduce" in outcomes[0].stack
    assert "in one_raises" in outcomes[0].stack
    assert "pytest_ddp" not in outcomes[0].stack


def test_all_ranks_raise(ranks):
    assert [outcome.message for outcome in run(ranks, rank_targets.all_raise)] == ["everybody", "everybody"]


def test_all_ranks_skip(ranks):
    assert all(isinstance(outcome, Skipped) for outcome in run(ranks, rank_targets.all_skip))


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_exits_early_has_not_succeeded_whatever_its_code(ranks, code):
    outcomes = run(ranks, rank_targets.one_exits, str(code).encode())
    root = root_cause(outcomes)
    assert isinstance(root, Died)
    assert (root.rank, root.exit_code, root.signal) == (1, code, None)
    assert root.last_collective == "all_reduce #1 float32[4]"
    assert peer_left(outcomes[0])


def test_sys_exit_is_an_exception_like_any_other(ranks):
    root = root_cause(run(ranks, rank_targets.one_calls_sys_exit))
    assert isinstance(root, Raised)
    assert (root.rank, root.kind, root.message) == (1, "SystemExit", "bye")


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGBUS"])
def test_a_killed_rank_is_reported_with_its_signal(ranks, signal):
    root = root_cause(run(ranks, rank_targets.one_gets_signal, signal.encode()))
    assert isinstance(root, Died)
    assert (root.rank, root.signal) == (1, signal)
    assert root.last_collective == "all_reduce #1 float32[4]"


@pytest.mark.parametrize("target", [rank_targets.one_segfaults, rank_targets.segfaults_after_the_last_collective])
def test_a_segfault_is_reported_with_its_python_stack(ranks, target):
    root = root_cause(run(ranks, target))
    assert isinstance(root, Died)
    assert (root.rank, root.signal) == (1, "SIGSEGV")
    assert f"in {target.__name__}" in root.stack


@pytest.mark.parametrize("target", [rank_targets.one_hangs, rank_targets.one_hangs_in_c])
def test_a_hang_ends_at_the_deadline_with_the_stacks_of_all_ranks(ranks, target):
    outcomes = run(ranks, target, timeout=HANG_SECONDS)
    root = root_cause(outcomes)
    assert isinstance(root, TimedOut)
    assert root.rank == 1, "the rank that came least far is the one that the other waits for"
    assert all(f"in {target.__name__}" in outcome.stack for outcome in outcomes)
    assert "which rank 1 never entered" in str(RankFailure(outcomes))


def test_operations_that_differ_are_named_with_their_ranks(ranks):
    text = str(RankFailure(run(ranks, rank_targets.operations_differ, timeout=HANG_SECONDS)))
    assert "the ranks disagree on collective #1: rank 0 is in all_reduce #1 float32[4]" in text
    assert "rank 1 is in broadcast #1 float32[4]" in text


def test_sizes_that_differ_kill_a_rank_and_are_named(ranks):
    outcomes = run(ranks, rank_targets.sizes_differ)
    assert isinstance(root_cause(outcomes), Died)
    text = str(RankFailure(outcomes))
    assert "rank 0 is in all_reduce #1 float32[2000], rank 1 is in all_reduce #1 float32[3000]" in text


def test_collectives_issued_by_cpp_are_recorded_where_torch_tells_of_them(ranks):
    record = run(ranks, rank_targets.trains_with_ddp)[0].collectives
    if not hasattr(__import__("torch").distributed.ProcessGroup, "register_pre_hook"):
        pytest.skip("torch before 2.15 has no hook for collectives that C++ issues")
    assert any(entry.startswith("all_reduce") for entry in record)


@pytest.mark.parametrize("how", ["skip", "raise"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_give_up_free_those_that_wait_for_them(ranks, how, size):
    """No rank is lost; the group is of no more use, and is renewed on the same processes."""
    with ranks.group(World(size)) as group:
        for _ in range(2):
            pids = [member.pid for member in group.members]
            outcomes = group.run("rank_targets:one_gives_up", how.encode(), timeout=60, hang_up=True)
            assert isinstance(outcomes[0], Skipped if how == "skip" else Raised)
            assert all(peer_left(outcome) for outcome in outcomes[1:])
            assert group.hung_up
            ranks.renew(group)
            assert not group.hung_up
            assert [member.pid for member in group.members] == pids
            again = group.run("rank_targets:all_reduce", timeout=60)
            assert all(isinstance(outcome, Returned) for outcome in again)


def test_a_group_is_renewed_with_new_ranks_for_those_that_are_gone(ranks):
    with ranks.group(World(2)) as group:
        first, second = (member.pid for member in group.members)
        assert isinstance(root_cause(group.run("rank_targets:one_exits", b"3", timeout=60)), Died)
        ranks.renew(group)
        assert group.members[0].pid == first
        assert group.members[1].pid != second
        assert all(isinstance(outcome, Returned) for outcome in group.run("rank_targets:all_reduce", timeout=60))


def test_a_rank_that_skips_while_others_wait_is_a_disagreement(ranks):
    outcomes = run(ranks, rank_targets.one_gives_up, b"skip")
    assert isinstance(outcomes[1], Stopped)
    text = str(RankFailure(outcomes))
    assert text.startswith("the ranks disagree: rank 0 skipped: not me, while rank 1 went on and waited for it; decide")
    assert "rank 1 waited in all_reduce #2 float32[4], which rank 0 never entered" in text
