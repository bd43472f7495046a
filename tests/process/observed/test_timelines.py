"""What ranks communicated is told when one of them fails, and their collectives are compared."""

import json
import re

import pytest
import told_targets
from trace_rules import keep_the_rules

from pytest_ddp.observed import merge_traces
from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause, timelines
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

LONG = 120.0  # seconds; nothing here may need them
STEP = ["backward 1 began", "gradients ready", "backward 1 returned", "launched, waited", "launched, waited"]


@pytest.fixture(scope="module")
def pool():
    """Ranks of their own, whose grace is no help."""
    with RankPool(grace=LONG) as pool:
        yield pool


def run(pool: RankPool, target, *, observe: bool = True) -> list[Outcome]:
    return pool.run(World(2, observe=observe), f"{told_targets.__name__}:{target.__name__}", timeout=LONG)


def told(outcome: Outcome) -> list[str]:
    head, *lines = outcome.timeline.splitlines()
    return [line[head.index("event") : head.index("what")].strip() for line in lines]


def test_every_rank_tells_what_it_did_and_ranks_that_did_the_same_are_told_together(pool):
    outcomes = run(pool, told_targets.all_raise)
    assert [told(outcome) for outcome in outcomes] == [STEP, STEP]
    assert [ranks for ranks, _ in timelines(outcomes)] == ["ranks 0, 1"]


def test_a_rank_that_passed_tells_it_too(pool):
    passed, failed = run(pool, told_targets.one_raises)
    assert isinstance(passed, Returned)
    assert told(passed) == told(failed) == STEP


def test_of_a_rank_that_died_is_told_what_it_had_posted(pool):
    passed, died = run(pool, told_targets.one_dies)
    assert isinstance(died, Died)
    assert told(passed) == STEP
    assert told(died) == ["entered", "entered"]
    assert re.search(r"entered +all_reduce #2 +\S+ \(0-1\) +float32\[2\] +\S*told_targets.py:\d+$", died.timeline)


def test_of_a_rank_that_waited_in_vain_is_told_in_what(pool):
    waited, passed = run(pool, told_targets.one_waits)
    assert isinstance(waited, Deadlocked)
    assert told(waited) == ["entered", "entered", "waits"]
    assert told(passed) == STEP


def test_the_text_of_a_failure_has_the_timelines(pool):
    text = str(RankFailure(run(pool, told_targets.one_dies), World(2, observe=True)))
    assert "---- rank 0: timeline ----\nclock" in text
    assert "---- rank 1: timeline ----\nevent" in text


@pytest.mark.parametrize(
    ("target", "observe"), [(told_targets.all_is_well, True), (told_targets.raises_at_once, False)]
)
def test_nothing_is_told_where_all_is_well_or_nothing_observed(pool, target, observe):
    assert [outcome.timeline for outcome in run(pool, target, observe=observe)] == ["", ""]


def test_a_rank_whose_record_is_broken_says_so(pool):
    outcomes = run(pool, told_targets.one_breaks_its_record)
    assert told(outcomes[0]) == STEP
    assert (
        outcomes[1].timeline
        == "<the timeline could not be made: AttributeError: 'NoneType' object has no attribute 'items'>"
    )


def test_ranks_are_warm_after_they_told(pool):
    run(pool, told_targets.all_raise)
    before = pool.counts["started"]
    assert not failures(run(pool, told_targets.all_is_well))
    assert pool.counts["started"] == before


@pytest.mark.parametrize("target", [told_targets.same, told_targets.parts_of_their_own])
def test_what_is_the_same_on_all_ranks(pool, target):
    outcomes = run(pool, target)
    assert not failures(outcomes), str(RankFailure(outcomes))


def messages(outcomes: list[Outcome]) -> set[str]:
    assert all(isinstance(outcome, Raised) for outcome in outcomes)
    return {outcome.message for outcome in outcomes if isinstance(outcome, Raised)}


def test_an_operation_that_only_one_rank_has_entered_is_told_alike_by_all(pool):
    (message,) = messages(run(pool, told_targets.one_has_one_more))
    assert re.fullmatch(
        r"expected the same operations on all ranks; collective 3 differs: rank 0 entered only 2, "
        r"rank 1 entered all_reduce #3 float32\[3\] at \S*told_targets.py:\d+",
        message,
    )


def test_another_order_of_groups_is_told(pool):
    (message,) = messages(run(pool, told_targets.another_order))
    assert re.search(r"collective 1 differs: rank 0 entered all_reduce #1 .* in group '(.+)' of .* '(?!\1')", message)


def test_a_rank_that_does_not_come_to_compare_is_a_deadlock(pool):
    root = root_cause(run(pool, told_targets.one_does_not_come))
    assert isinstance(root, Deadlocked)
    assert re.fullmatch(
        r"waits in assert_same_on_all_ranks #1 in group 'assertions' of ranks 0, 1 at \S*told_targets.py:\d+, "
        "which rank 1 never entered: it has returned",
        root.waits,
    )


def test_without_a_group_nobody_can_be_asked(pool):
    (message,) = messages(run(pool, told_targets.no_group))
    assert message == (
        "assert_same_on_all_ranks() needs the other ranks, but the test has destroyed this rank's process group"
    )


def test_traces_of_real_ranks_keep_the_rules_and_become_one(pool, tmp_path):
    target = f"{told_targets.__name__}:exports_a_trace"
    outcomes = pool.run(World(2, observe=True), target, str(tmp_path).encode(), timeout=LONG)
    assert not failures(outcomes), str(RankFailure(outcomes))
    merge_traces(sorted(tmp_path.glob("*.json")), tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    keep_the_rules(events)
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["name"] for event in events} >= {"backward 1", "weight", "bias", "all_reduce #1", "wait"}
    arrows = [event["ph"] for event in events if event.get("cat") == "match"]
    assert sorted(arrows) == ["f"] * 6 + ["s"] * 6
