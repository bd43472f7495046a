"""Under a gate, the verdict on a wrapper does not depend on the timing of its ranks."""

import functools
import inspect
import math
import pickle

import overlapping
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.observed import Delay, HoldUntilBackward, InOrder, Overlap, Shuffled
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.planning.world import World

WORLD = World(2, observe=True)
OPERATIONS = 6  # per backward: one for each parameter
HOLD = repr(HoldUntilBackward())

RIGHT = {
    "Overlapped": Overlap.OVERLAPPED,
    "OverlappedOnNodes": Overlap.OVERLAPPED,
    "OverlappedOnTensors": Overlap.OVERLAPPED,
    "OverlappedWithFutures": Overlap.OVERLAPPED,
    "OverlappedWithCollectedFutures": Overlap.OVERLAPPED,
    "OverlappedWithPolls": Overlap.OVERLAPPED,
    "OverlappedFinishedInCallback": Overlap.OVERLAPPED,
    "OverlappedFinishedInLastHook": Overlap.OVERLAPPED,
    "EverythingInFinish": Overlap.AFTER_BACKWARD,
    "EverythingAtTheEndOfBackward": Overlap.END_OF_BACKWARD,
}
BLOCKING = [
    "BlockingInHook",
    "WaitingInHook",
    "WaitingForTheOneBefore",
    "WaitingForFutureInHook",
    "PollingInHook",
]
POISONED = {  # the number of operations per backward that are never waited for
    "ForgottenWait": OPERATIONS,
    "WaitOnAllButTheLast": 1,
    "WaitOnlyOnTheFirst": OPERATIONS - 1,
    "WaitOnlyOnTheLast": OPERATIONS - 1,
    "ForgottenFuture": OPERATIONS,
    "CopiedBeforeTheWait": 0,
}
WRONG = {  # wrong numbers without poison
    "WaitOnACopy": Overlap.OVERLAPPED,
    "DividedBeforeTheWait": Overlap.OVERLAPPED,
    "Nothing": Overlap.NONE,
}


def test_every_wrapper_is_in_one_table():
    assert {*RIGHT, *BLOCKING, *POISONED, *WRONG} == {*overlapping.WRAPPERS}


@pytest.fixture(scope="module")
def train(ranks):
    """Train with a wrapper; return for each rank its verdicts, unawaited operations, numbers and error."""

    def train(name: str, schedule: str, seed: int = 0):
        outcomes = ranks.run(WORLD, "overlapping:train", pickle.dumps((name, schedule, seed)), timeout=60)
        assert not failures(outcomes), str(RankFailure(outcomes, WORLD))
        return [pickle.loads(outcome.body) for outcome in outcomes]  # noqa: S301  from our own target

    return train


@pytest.fixture(scope="module")
def right_numbers(train):
    """Parameters and gradients after each step, communicated after backward without a gate."""
    return [numbers for _, _, numbers, _ in train("EverythingInFinish", "")]


def repeated(test):
    """Run a test with 2 seeds for the ranks' pauses, in the long lane with 200."""
    long = pytest.param(range(200), marks=pytest.mark.long, id="200")
    return pytest.mark.parametrize("seeds", [pytest.param(range(2), id="2"), long])(test)


@repeated
@pytest.mark.parametrize("name", RIGHT)
def test_right_wrappers_pass_and_get_their_verdict(train, right_numbers, name, seeds):
    for seed in seeds:
        for rank, (verdicts, unawaited, numbers, refused) in enumerate(train(name, HOLD, seed)):
            assert [verdict.verdict for verdict in verdicts] == [RIGHT[name]] * overlapping.STEPS
            assert not unawaited
            assert not refused
            assert numbers == right_numbers[rank]


@repeated
@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_inside_backward_raises_with_its_line(train, name, seeds):
    where = f"tests/on_ranks/overlapping.py:{line_that_blocks(name)}"
    for seed in seeds:
        for verdicts, _, _, refused in train(name, HOLD, seed):
            assert refused.startswith(f"blocks inside backward at {where}: ")
            assert "of 6 gradients ready; HoldUntilBackward() completes no operation before all are ready" in refused
            if name != "PollingInHook":
                assert [(verdict.verdict, verdict.at) for verdict in verdicts] == [
                    (Overlap.BLOCKS_INSIDE_BACKWARD, where)
                ]


@repeated
@pytest.mark.parametrize("name", POISONED)
def test_a_result_that_is_not_waited_for_is_poison(train, name, seeds):
    for seed in seeds:
        for verdicts, unawaited, numbers, refused in train(name, HOLD, seed):
            assert not refused
            assert verdicts[0].verdict is Overlap.OVERLAPPED
            assert len(unawaited) == POISONED[name] * overlapping.STEPS
            assert all(str(entry).startswith("all_reduce #") for entry in unawaited)
            assert has_nan(numbers[0])


@repeated
@pytest.mark.parametrize("name", WRONG)
def test_other_mistakes_give_the_same_wrong_numbers_each_time(train, right_numbers, name, seeds):
    first = train(name, HOLD)
    for seed in seeds:
        found = train(name, HOLD, seed)
        for rank, (verdicts, unawaited, numbers, _) in enumerate(found):
            assert [verdict.verdict for verdict in verdicts] == [WRONG[name]] * overlapping.STEPS
            assert not unawaited
            assert not has_nan(numbers[0])
            assert numbers != right_numbers[rank]
            assert numbers == first[rank][2]


@pytest.mark.parametrize("name", sorted(set(BLOCKING) - {"PollingInHook"}))
def test_without_a_gate_the_verdict_has_the_same_line(train, name):
    where = f"tests/on_ranks/overlapping.py:{line_that_blocks(name)}"
    for verdicts, _, _, refused in train(name, ""):
        assert not refused
        assert [(verdict.verdict, verdict.at) for verdict in verdicts] == [
            (Overlap.BLOCKS_INSIDE_BACKWARD, where)
        ] * overlapping.STEPS


@pytest.mark.parametrize("name", ["Overlapped", "ForgottenWait"])
def test_without_a_gate_overlap_and_forgotten_waits_are_found(train, name):
    for verdicts, unawaited, _, _ in train(name, ""):
        assert [verdict.verdict for verdict in verdicts] == [Overlap.OVERLAPPED] * overlapping.STEPS
        assert len(unawaited) == (0 if name == "Overlapped" else OPERATIONS * overlapping.STEPS)


schedules = st.one_of(
    st.just(HoldUntilBackward()),
    st.builds(InOrder, st.permutations(range(1, OPERATIONS + 1)).map(tuple)),
    st.builds(Delay, st.integers(1, 2 * OPERATIONS)),
    st.builds(Shuffled, st.integers()),
)


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, name=st.sampled_from(sorted(RIGHT)))
def test_right_wrappers_give_equal_numbers_in_every_order_of_completion(train, right_numbers, schedule, name):
    for rank, (verdicts, unawaited, numbers, refused) in enumerate(train(name, repr(schedule))):
        assert [verdict.verdict for verdict in verdicts] == [RIGHT[name]] * overlapping.STEPS
        assert not unawaited
        assert not refused
        assert numbers == right_numbers[rank]


@settings(max_examples=30, deadline=None)
@given(schedule=schedules, name=st.sampled_from(sorted(set(POISONED) - {"ForgottenFuture"})))
def test_a_forgotten_wait_is_caught_in_every_order_of_completion(train, schedule, name):
    for _, unawaited, numbers, _ in train(name, repr(schedule)):
        assert len(unawaited) == POISONED[name] * overlapping.STEPS
        assert has_nan(numbers[0])


@pytest.mark.parametrize("name", BLOCKING)
def test_waits_inside_backward_are_allowed_by_schedules_that_only_order(train, name):
    for verdicts, unawaited, _, refused in train(name, repr(Shuffled(1))):
        assert not refused
        assert not unawaited
        assert len(verdicts) == overlapping.STEPS


@functools.cache
def line_that_blocks(name: str) -> int:
    lines, first = inspect.getsourcelines(overlapping.WRAPPERS[name])
    return first + next(index for index, line in enumerate(lines) if "# blocks" in line)


def has_nan(numbers) -> bool:
    return math.isnan(numbers) if isinstance(numbers, float) else any(map(has_nan, numbers))
