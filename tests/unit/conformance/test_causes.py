"""Failures have one cause if the advice on them differs in ranks, steps and parameters alone."""

from conformance.diagnosis.causes import cause_of_failure
from conformance.diagnosis.gradients import UNKNOWN
from conformance.execution.outcome import Broken, Malformed
from pytest_ddp.outcomes.outcome import Raised, TimedOut

ENDED = Malformed(0, "")


def test_ranks_steps_and_parameters_make_no_other_cause():
    one = "Looks like *zero*: At step 1, on ranks 0, 1, the gradient of every parameter is zero. Clear it."
    other = "A larger model, of 3 layers, shows more. " + one.replace("step 1, on ranks 0, 1", "step 2, on rank 1")
    assert cause_of_failure(one, ENDED) == cause_of_failure(other, ENDED)
    ignored = "Looks like *change ignored*: it stayed (on rank {}, `{}`). Share the dicts."
    assert cause_of_failure(ignored.format(0, "a"), ENDED) == cause_of_failure(ignored.format(1, "b"), ENDED)


def test_other_advice_is_of_another_cause():
    one = "Looks like *zero*: At step 1, on ranks 0, 1, the gradient of every parameter is zero. Clear it."
    assert cause_of_failure(one, ENDED) != cause_of_failure(one.replace("every parameter", "`scale`"), ENDED)


def test_nothing_follows_from_what_is_not_known():
    assert not cause_of_failure(f"{UNKNOWN} On rank 0, it is wrong.", ENDED)
    assert not cause_of_failure("Most often a rank waits.", Broken((TimedOut(rank=0, timeout=10.0),)))
    raised = Raised(rank=0, kind="KeyError", message="lr", traceback="")
    assert cause_of_failure("Pass the defaults.", Broken((raised,)))
