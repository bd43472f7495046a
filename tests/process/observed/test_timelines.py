"""Timelines of ranks when one of them fails, and comparisons of their records."""

import json
import re

import pytest
import timeline_targets
from trace_format import check_trace_format

from pytest_ddp.observed import merge_traces
from pytest_ddp.outcomes.failure import RankFailure, failures, operations, root_cause
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

LONG = 120.0  # seconds; no test here may take that long
STEP = ["backward 1 began", "gradients ready", "backward 1 returned", "launched, waited", "launched, waited"]


@pytest.fixture(scope="module")
def pool():
    """A pool whose grace period is too long to end a wait."""
    with RankPool(grace=LONG) as pool:
        yield pool


def run(pool: RankPool, target, *, observe: bool = True) -> list[Outcome]:
    return pool.run(World(2, observe=observe), f"{timeline_targets.__name__}:{target.__name__}", timeout=LONG)


def shown_events(outcome: Outcome) -> list[str]:
    head, *lines = outcome.timeline.splitlines()
    return [line[head.index("event") : head.index("what")].strip() for line in lines]


def test_every_rank_has_a_timeline_and_equal_ones_are_grouped(pool):
    outcomes = run(pool, timeline_targets.all_raise)
    assert [shown_events(outcome) for outcome in outcomes] == [STEP, STEP]
    assert [section[:2] for section in operations(outcomes)] == [("timeline", "ranks 0, 1")]


def test_a_rank_that_passed_has_a_timeline_too(pool):
    passed, failed = run(pool, timeline_targets.one_raises)
    assert isinstance(passed, Returned)
    assert shown_events(passed) == shown_events(failed) == STEP


def test_the_timeline_of_a_rank_that_died_has_its_operations(pool):
    passed, died = run(pool, timeline_targets.one_dies)
    assert isinstance(died, Died)
    assert shown_events(passed) == STEP
    assert shown_events(died) == ["entered", "entered"]
    assert re.search(r"entered +all_reduce #2 +\S+ \(0-1\) +float32\[2\] +\S*timeline_targets.py:\d+$", died.timeline)


def test_the_timeline_of_a_deadlocked_rank_has_its_wait(pool):
    waited, passed = run(pool, timeline_targets.one_waits)
    assert isinstance(waited, Deadlocked)
    assert shown_events(waited) == ["entered", "entered", "waits"]
    assert shown_events(passed) == STEP


def test_the_text_of_a_failure_has_the_timelines(pool):
    text = str(RankFailure(run(pool, timeline_targets.one_dies), World(2, observe=True)))
    assert "---- rank 0: timeline ----\nclock" in text
    assert "---- rank 1: timeline ----\nevent" in text


@pytest.mark.parametrize(
    ("target", "observe"), [(timeline_targets.nothing_fails, True), (timeline_targets.raises_at_once, False)]
)
def test_there_is_no_timeline_without_a_failure_or_without_observing(pool, target, observe):
    assert [outcome.timeline for outcome in run(pool, target, observe=observe)] == ["", ""]


def test_a_broken_record_has_an_error_for_a_timeline(pool):
    outcomes = run(pool, timeline_targets.one_breaks_its_record)
    assert shown_events(outcomes[0]) == STEP
    assert (
        outcomes[1].timeline
        == "<the timeline could not be made: AttributeError: 'NoneType' object has no attribute 'items'>"
    )


def test_ranks_stay_warm_after_a_timeline(pool):
    run(pool, timeline_targets.all_raise)
    before = pool.counts["started"]
    assert not failures(run(pool, timeline_targets.nothing_fails))
    assert pool.counts["started"] == before


@pytest.mark.parametrize("target", [timeline_targets.same, timeline_targets.different_parts])
def test_equal_collectives_pass(pool, target):
    outcomes = run(pool, target)
    assert not failures(outcomes), str(RankFailure(outcomes))


def messages(outcomes: list[Outcome]) -> set[str]:
    assert all(isinstance(outcome, Raised) for outcome in outcomes)
    return {outcome.message for outcome in outcomes if isinstance(outcome, Raised)}


def test_all_ranks_report_an_operation_that_only_one_has_entered(pool):
    (message,) = messages(run(pool, timeline_targets.one_enters_one_more))
    assert re.fullmatch(
        r"expected the same operations on all ranks; collective 3 differs: rank 0 entered only 2, "
        r"rank 1 entered all_reduce #3 float32\[3\] at \S*timeline_targets.py:\d+",
        message,
    )


def test_a_different_order_of_groups_is_reported(pool):
    (message,) = messages(run(pool, timeline_targets.different_order))
    assert re.search(r"collective 1 differs: rank 0 entered all_reduce #1 .* in group '(.+)' of .* '(?!\1')", message)


def test_a_rank_that_does_not_compare_is_a_deadlock(pool):
    root = root_cause(run(pool, timeline_targets.one_does_not_compare))
    assert isinstance(root, Deadlocked)
    assert re.fullmatch(
        r"waits in assert_same_on_all_ranks #1 in group 'assertions' of ranks 0, 1 at \S*timeline_targets.py:\d+, "
        "which rank 1 never entered: it has returned",
        root.waits,
    )


def test_comparing_needs_a_process_group(pool):
    (message,) = messages(run(pool, timeline_targets.no_group))
    assert message == (
        "assert_same_on_all_ranks() needs the other ranks, but the test has destroyed this rank's process group"
    )


def test_traces_of_real_ranks_are_valid_and_can_be_merged(pool, tmp_path):
    target = f"{timeline_targets.__name__}:exports_a_trace"
    outcomes = pool.run(World(2, observe=True), target, str(tmp_path).encode(), timeout=LONG)
    assert not failures(outcomes), str(RankFailure(outcomes))
    merge_traces(sorted(tmp_path.glob("*.json")), tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    check_trace_format(events)
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["name"] for event in events} >= {"backward 1", "weight", "bias", "all_reduce #1", "wait"}
    arrows = [event["ph"] for event in events if event.get("cat") == "match"]
    assert sorted(arrows) == ["f"] * 6 + ["s"] * 6
