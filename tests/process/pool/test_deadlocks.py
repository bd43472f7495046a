"""Ranks that wait for ever are found without any timeout, and ranks that do not are left alone.

Each test runs with and without `observe=True`, unless only observed ranks can pass it.
"""

import re
from contextlib import closing
from functools import partial

import deadlock_targets
import pytest

from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool import group as pool_group
from pytest_ddp.pool.launcher import SpawnLauncher
from pytest_ddp.pool.pool import RankPool

LONG = 300.0  # seconds; nothing here may need them
LINE = r"(?: at \S*deadlock_targets\.py:\d+)?"  # only observed operations have one
DEADLOCKS = {
    "one_returns": f"rank 0 .* all_reduce #2 float32[4]{LINE}, which rank 1 never entered: it has returned",
    "one_returns_before_a_handle_is_waited_for": "all_reduce #1 .*, which rank 1 never entered: it has returned",
    "nobody_receives": f"rank 0 .* it waits in send #1 float32[4] to rank 1{LINE}, which has returned",
    "nobody_sends": f"rank 0 .* it waits in recv #1 float32[4] from rank 1{LINE}, which has returned",
    "nobody_sends_to_anyone": f"recv #1 float32[4] from any rank{LINE}, to which rank 1 never sent: it has",
    "one_message_too_few": f"recv #2 float32[4] from any rank{LINE}, to which rank 1 never sent: it has returned",
    "another_tag": "in (send #1 float32[4] to rank 1 with tag 1|recv #1 float32[4] from rank 0 with tag 2).*, "
    "which waits in",
    "a_message_against_a_collective": "recv #1 float32[4] from rank 1.*, which waits in all_reduce #1",
    "crossed_groups": "in group '.' of ranks 0, 1.*, which rank 1 never entered: it waits in all_reduce #1 .* in "
    "group '.' of ranks 0, 1.*, which rank 0 never entered",
}


@pytest.fixture(scope="module")
def ranks():
    """Ranks of their own, whose grace is no help."""
    with RankPool(grace=LONG) as pool:
        yield pool


@pytest.fixture(scope="module")
def short():
    """Ranks that are ended soon after another has failed."""
    with RankPool(grace=0.2) as pool:
        yield pool


@pytest.fixture
def looked_at_all_the_time(monkeypatch):
    """Let the controller look without a pause: it meets every state that there is."""
    monkeypatch.setattr(pool_group, "LOOK_SECONDS", 0.0)


@pytest.fixture(params=[True, False], ids=["observed", "recorded"])
def run(request):
    """Return a function that runs a target; `run.observe` says whether its ranks are observed."""
    return partial(run_target, observe=request.param)


def run_target(ranks: RankPool, target, size: int = 2, body: bytes = b"", *, observe: bool = True):
    name = target if isinstance(target, str) else target.__name__
    return ranks.run(World(size, observe=observe), f"{deadlock_targets.__name__}:{name}", body, timeout=LONG)


def pattern(words: str) -> str:
    return words.replace("[4]", r"\[4\]")


def text(outcomes) -> str:
    assert not any(isinstance(outcome, TimedOut) for outcome in outcomes)
    return str(RankFailure(outcomes, World(len(outcomes), observe=True))).partition("----")[0]


@pytest.mark.parametrize("target", DEADLOCKS)
def test_a_deadlock_of_two_is_told_with_operations_and_lines(ranks, run, target):
    outcomes = run(ranks, target)
    assert isinstance(root_cause(outcomes), Deadlocked)
    assert re.search(pattern(DEADLOCKS[target]), text(outcomes))


@pytest.mark.parametrize("target", ["all_send_first", "all_receive_first"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_cycle_of_messages_is_told_from_rank_to_rank(ranks, run, target, size):
    outcomes = run(ranks, target, size)
    assert all(isinstance(outcome, Deadlocked) for outcome in outcomes)
    op, step = ("send", 1) if target == "all_send_first" else ("recv", -1)
    cycle = [
        f"waits in {op} #1 float32[4] {'to' if op == 'send' else 'from'} rank {step * n % size}{LINE}"
        for n in range(1, size + 1)
    ]
    assert re.search(
        pattern("rank 0 of . .* deadlocked: it " + ", which ".join(cycle) + ", which never"), text(outcomes)
    )


def test_groups_in_a_ring(ranks, run):
    outcomes = run(ranks, deadlock_targets.groups_in_a_ring, 3)
    assert all(isinstance(outcome, Deadlocked) for outcome in outcomes)
    ring = ", which rank 1 never entered: it .*, which rank 2 never entered: it .*, which rank 0 never entered\n"
    assert re.search(ring, text(outcomes))


def test_several_that_wait_for_one_are_told_together(ranks, run):
    outcomes = run(ranks, deadlock_targets.one_is_late_for_a_barrier, 4)
    assert [type(outcome) for outcome in outcomes] == [Deadlocked, Returned, Deadlocked, Deadlocked]
    assert re.search(rf"ranks 2, 3: deadlocked: they wait in barrier #1{LINE}, which rank 1 never", text(outcomes))


def test_ranks_that_wait_for_one_another_are_found_while_a_third_runs(short):
    """Only observed ranks: without, all ranks that have not answered must wait."""
    outcomes = run_target(short, deadlock_targets.two_wait_while_one_computes, 3)
    assert [type(outcome) for outcome in outcomes] == [Deadlocked, Deadlocked, Stopped]


def test_the_stack_of_a_deadlocked_rank_is_kept(ranks, run):
    assert "in one_returns" in run(ranks, deadlock_targets.one_returns)[0].stack


@pytest.mark.parametrize(
    ("target", "kind", "became"),
    [("one_raises", Raised, "failed"), ("one_skips", Skipped, "skipped")],
)
def test_who_waits_for_one_that_gave_up_is_ended_at_once(ranks, run, target, kind, became):
    waiting, gave_up = run(ranks, target)
    assert isinstance(gave_up, kind)
    assert isinstance(waiting, Stopped)
    assert re.fullmatch(
        pattern(f"waits in all_reduce #1 float32[4]{LINE}, which rank 1 never entered: it has {became}"),
        waiting.waits,
    )


def test_who_waits_for_one_that_died_is_not_the_cause(ranks, run):
    outcomes = run(ranks, deadlock_targets.one_dies)
    assert isinstance(root_cause(outcomes), Died)
    assert len(failures(outcomes)) == 2


@pytest.mark.usefixtures("looked_at_all_the_time")
@pytest.mark.parametrize("target", ["one_is_slow", "one_computes", "one_goes_on_alone", "one_waits_in_the_store"])
def test_a_rank_that_is_slow_is_waited_for(ranks, run, target):
    outcomes = run(ranks, target, body=b"2")
    assert [type(outcome) for outcome in outcomes] == [Returned, Returned]


@pytest.mark.long
def test_a_rank_that_is_very_slow_is_waited_for(ranks, run):
    assert not failures(run(ranks, deadlock_targets.one_is_slow, body=b"20"))
    assert not failures(run(ranks, deadlock_targets.one_computes, body=b"20000"))


@pytest.mark.parametrize("target", ["another_thread_comes", "a_thread_of_a_rank_that_returned_comes"])
def test_threads_that_may_still_communicate_are_waited_for(ranks, run, target):
    assert not failures(run(ranks, target))


@pytest.mark.parametrize(
    "target", ["a_timeout_is_expected", "a_wait_has_a_timeout", "a_monitored_barrier_has_a_timeout"]
)
def test_a_wait_with_a_timeout_of_its_own_is_left_to_end_by_itself(ranks, run, target):
    outcomes = run(ranks, target)
    assert not failures(outcomes)
    assert outcomes[0].body in {b"RuntimeError", b"DistBackendError"}


@pytest.mark.usefixtures("looked_at_all_the_time")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("target", ["everything_in_turn", "a_server_takes_from_anyone"])
def test_no_moment_of_a_run_that_goes_well_looks_like_a_deadlock(ranks, run, target, size):
    assert not failures(run(ranks, target, size, body=b"50"))


@pytest.mark.usefixtures("looked_at_all_the_time")
def test_a_wait_that_fails_because_a_connection_is_closed_is_no_deadlock(ranks):
    """Only without observing: an observed rank stays in its group, which its record refers to."""
    outcomes = run_target(ranks, deadlock_targets.one_loses_its_peer, body=b"1", observe=False)
    assert not failures(outcomes)
    assert outcomes[0].body == b"RuntimeError"


@pytest.mark.usefixtures("looked_at_all_the_time")
def test_ranks_that_wait_long_in_one_collective_are_waited_for(ranks, run):
    assert not failures(run(ranks, deadlock_targets.a_collective_is_slow))


@pytest.mark.usefixtures("looked_at_all_the_time")
def test_an_operation_that_is_not_recorded_makes_no_deadlock(ranks):
    """Only without observing: calls of a backend are not seen."""
    assert not failures(run_target(ranks, deadlock_targets.one_escapes_the_record, observe=False))


def test_ranks_in_fresh_interpreters_share_a_flight_recorder_too(run):
    with closing(SpawnLauncher()) as launcher, RankPool(launcher, grace=LONG) as pool:
        assert isinstance(root_cause(run(pool, deadlock_targets.one_returns)), Deadlocked)


def test_a_rank_that_was_replaced_counts_like_the_others(ranks, run):
    run(ranks, deadlock_targets.one_returns)  # after this, rank 0 is a new process and rank 1 is not
    assert not failures(run(ranks, deadlock_targets.everything_in_turn, body=b"2"))
    assert isinstance(root_cause(run(ranks, deadlock_targets.one_returns)), Deadlocked)


def test_a_group_that_the_ranks_make_themselves_is_looked_at(ranks, run):
    outcomes = run(ranks, deadlock_targets.one_returns_from_a_group_of_its_own)
    assert re.search(
        r"rank 0 .* it waits in all_reduce #2 .*, which rank 1 never entered: it has returned", text(outcomes)
    )
