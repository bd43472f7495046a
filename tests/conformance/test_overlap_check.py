"""Overlap is judged by the order of events: real overlap passes, whatever its granularity; the rest is told apart."""

from dataclasses import replace

import pytest
import torch

from conformance.checks.check import Violation
from conformance.checks.trial import Trial
from conformance.components.wrapper.overlap import overlaps_backward, starts_in_backward
from conformance.protocol.messages import Happening, Observation
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Scenario

LAYERS = 3
LAUNCH = Happening("launched", op="all_reduce", bytes=8, dtype="float64")
BARRIER = Happening("launched", op="barrier")
FLAGS = Happening("launched", op="all_reduce", bytes=3, dtype="uint8")
LAUNCH_2 = Happening("launched", op="all_reduce", bytes=8, dtype="float64", number=2)
WAITED, WAITED_2 = Happening("waited"), Happening("waited", number=2)
RETURNED, FINISHED = Happening("returned"), Happening("finished")


def reached(layer: int) -> Happening:
    return Happening("reached", layer=layer)


def trial(*happened: Happening) -> Trial:
    scenario = Scenario(model=ModelSpec(layers=(Linear(1),) * LAYERS), world_size=1)
    seen = Observation({"x": torch.zeros(1)}, happenings=[[*happened, FINISHED]])
    return Trial(scenario, 0, (seen,))


PER_PARAMETER = trial(reached(1), LAUNCH, reached(0), LAUNCH, LAUNCH, RETURNED)
ONE_BUCKET = trial(reached(1), reached(0), LAUNCH, RETURNED)
QUEUED = trial(reached(1), reached(0), LAUNCH, LAUNCH, LAUNCH, RETURNED)
AFTERWARDS = trial(reached(1), reached(0), RETURNED, LAUNCH)
CONTROL_ONLY = trial(reached(1), FLAGS, reached(0), RETURNED, LAUNCH)
WAITED_LATER = trial(LAUNCH, reached(1), reached(0), LAUNCH, RETURNED, WAITED)
WAITED_AT_ONCE = trial(LAUNCH, WAITED, reached(1), LAUNCH_2, WAITED_2, reached(0), RETURNED)
WAITED_FOR_ONE_BEFORE = trial(LAUNCH, reached(1), LAUNCH_2, WAITED, reached(0), RETURNED)
WITH_BARRIER = trial(LAUNCH, BARRIER, WAITED_2, reached(1), reached(0), LAUNCH, RETURNED, WAITED)
BARRIER_AFTERWARDS = trial(LAUNCH, reached(1), reached(0), LAUNCH, RETURNED, BARRIER, WAITED_2, WAITED)
NOTHING = trial(reached(1), reached(0), RETURNED)


@pytest.mark.parametrize("check", [overlaps_backward, starts_in_backward])
@pytest.mark.parametrize("case", [PER_PARAMETER, WAITED_LATER, WAITED_FOR_ONE_BEFORE, BARRIER_AFTERWARDS])
def test_a_launch_before_the_last_gradient_passes(check, case):
    check(case)


def test_one_bucket_for_the_whole_model_may_start_with_the_last_gradient_where_no_size_was_asked_for():
    starts_in_backward(ONE_BUCKET)
    with pytest.raises(Violation, match="only at the very end of backward"):
        overlaps_backward(ONE_BUCKET)


@pytest.mark.parametrize("check", [overlaps_backward, starts_in_backward])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        (QUEUED, "only at the very end of backward"),
        (AFTERWARDS, "only in `on_after_backward`"),
        (CONTROL_ONLY, "only in `on_after_backward`"),
        (WAITED_AT_ONCE, "backward stands still for each collective that it launches: the first one, all_reduce"),
        (WITH_BARRIER, "On rank 0 at step 1 of 1, there is a barrier in backward: every rank stands still in it"),
        (NOTHING, "no gradient was communicated at all"),
    ],
)
def test_what_does_not_overlap_is_told_with_when_it_launched(check, case, words):
    with pytest.raises(Violation, match=words):
        check(case)


def one_after_the_other(*, elsewhere: bool) -> Trial:
    """Return a step of six exchanges, of which the first alone begins before backward is at the first layer."""
    one = Happening("launched", op="all_reduce", bytes=8, dtype="float64", elsewhere=elsewhere)
    return trial(one, reached(1), reached(0), RETURNED, *[one] * 5)


def test_one_early_launch_of_many_is_no_overlap():
    with pytest.raises(Violation, match=r"1 of 6 exchanges .* all but the first layer's .* expected 3 at least"):
        overlaps_backward(one_after_the_other(elsewhere=False))


def test_of_another_thread_no_more_than_one_early_launch_is_asked():
    overlaps_backward(one_after_the_other(elsewhere=True))


def test_what_is_sent_again_after_backward_does_not_count():
    overlaps_backward(trial(LAUNCH, reached(1), *[LAUNCH] * 3, reached(0), *[LAUNCH] * 2, RETURNED, *[LAUNCH] * 6))


@pytest.mark.parametrize(("spoiled", "words"), [(["layers.1.weight"] * 2, ""), ([], "whose results it does not use")])
def test_collectives_of_backward_must_give_the_gradients(spoiled, words):
    six = [LAUNCH, reached(1), *[LAUNCH] * 3, reached(0), *[LAUNCH] * 2, RETURNED, FINISHED]
    scenario = replace(PER_PARAMETER.scenario, spoiled=True)
    seen = Observation({"x": torch.zeros(1)}, happenings=[six], spoiled=spoiled * 2)
    judged = Trial(scenario, 0, (seen,))
    if not words:
        overlaps_backward(judged)
        return
    with pytest.raises(Violation, match=words):
        overlaps_backward(judged)
