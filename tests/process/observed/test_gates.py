"""Under a gate, how a wrapper communicates is told the same way every time, whatever the timing of its ranks."""

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
OPERATIONS = 6  # in each backward: the model's parameters
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
POISONED = {  # and how many operations of each backward nobody waits for
    "ForgottenWait": OPERATIONS,
    "WaitOnAllButTheLast": 1,
    "WaitOnlyOnTheFirst": OPERATIONS - 1,
    "WaitOnlyOnTheLast": OPERATIONS - 1,
    "ForgottenFuture": OPERATIONS,
    "CopiedBeforeTheWait": 0,
}
WRONG = {  # numbers that are no poison
    "WaitOnACopy": Overlap.OVERLAPPED,
    "DividedBeforeTheWait": Overlap.OVERLAPPED,
    "Nothing": Overlap.NONE,
}


def test_every_wrapper_has_its_place():
    assert {*RIGHT, *BLOCKING, *POISONED, *WRONG} == {*overlapping.WRAPPERS}


@pytest.fixture(scope="module")
def train(ranks):
    """Train with a wrapper; return what each rank says of it."""

    def train(name: str, schedule: str, seed: int = 0):
        outcomes = ranks.run(WORLD, "overlapping:train", pickle.dumps((name, schedule, seed)), timeout=60)
        assert not failures(outcomes), str(RankFailure(outcomes, WORLD))
        return [pickle.loads(outcome.body) for outcome in outcomes]  # noqa: S301  from our own target

    return train


@pytest.fixture(scope="module")
def right_numbers(train):
    """Parameters and gradients after each step, with communication after backward and no gate."""
    return [numbers for _, _, numbers, _ in train("EverythingInFinish", "")]


def repeated(test):
    """Run a test a few times, and in the long lane two hundred times, each time with other pauses."""
    long = pytest.param(range(200), marks=pytest.mark.long, id="200")
    return pytest.mark.parametrize("seeds", [pytest.param(range(2), id="2"), long])(test)


@repeated
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted_and_told_apart(train, right_numbers, name, seeds):
    for seed in seeds:
        for rank, (verdicts, unawaited, numbers, refused) in enumerate(train(name, HOLD, seed)):
            assert [verdict.verdict for verdict in verdicts] == [RIGHT[name]] * overlapping.STEPS
            assert not unawaited
            assert not refused
            assert numbers == right_numbers[rank]


@repeated
@pytest.mark.parametrize("name", BLOCKING)
def test_what_blocks_inside_backward_is_refused_with_its_line(train, name, seeds):
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
def test_without_a_gate_the_record_tells_as_much_of_waits(train, name):
    where = f"tests/on_ranks/overlapping.py:{line_that_blocks(name)}"
    for verdicts, _, _, refused in train(name, ""):
        assert not refused
        assert [(verdict.verdict, verdict.at) for verdict in verdicts] == [
            (Overlap.BLOCKS_INSIDE_BACKWARD, where)
        ] * overlapping.STEPS


@pytest.mark.parametrize("name", ["Overlapped", "ForgottenWait"])
def test_without_a_gate_overlap_and_forgotten_waits_are_in_the_record_too(train, name):
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
def test_no_order_of_completion_changes_the_numbers_of_what_is_right(train, right_numbers, schedule, name):
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
def test_a_schedule_that_only_orders_lets_backward_wait(train, name):
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
