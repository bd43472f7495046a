"""The marks of a component: by aspect, half for what was not judged, a limit where an essential aspect is missing."""

import pytest

from conformance.checks.aspect import Aspect
from conformance.components.registry import COMPONENTS
from conformance.grading.marks import Outcome, marks, total

PROMISED = Aspect("promised", 6, ("a", "b", "c"), essential=True)
BESIDE = Aspect("beside", 4, ("d", "e"))
PASSED, FAILED, ERROR = Outcome("passed", ""), Outcome("failed", ""), Outcome("error", "")


def points(**outcomes):
    known = dict.fromkeys("abcde", PASSED) | outcomes
    return total(marks((PROMISED, BESIDE), known))


@pytest.mark.parametrize(
    ("outcomes", "earned"),
    [
        ({}, 10),
        ({"d": FAILED}, 8),
        ({"d": FAILED, "e": Outcome("not_run", "d")}, 7),
        ({"d": FAILED, "c": Outcome("not_run", "d")}, 7),
        ({"a": FAILED}, 8),
        ({"a": FAILED, "d": Outcome("not_run", "a")}, 6),
        ({"a": FAILED, "b": FAILED}, 4),
        ({"a": FAILED, "b": FAILED, "d": FAILED, "e": FAILED}, 2),
        ({"a": FAILED, "b": ERROR}, 6),
        ({"a": ERROR, "b": Outcome("not_run", "a"), "c": Outcome("not_run", "a")}, 4),
        ({"a": FAILED, "b": Outcome("not_run", "a"), "c": Outcome("not_run", "a"), "d": FAILED}, 2),
        ({"a": ERROR, "b": Outcome("not_run", "a"), "d": FAILED}, 4),
        ({"d": Outcome("not_run", "")}, 8),
    ],
    ids=[
        "all",
        "one",
        "half_behind_it",
        "half_in_another_aspect",
        "one_of_an_essential_aspect",
        "nothing_behind_an_essential_one",
        "at_most_forty_percent",
        "and_less_if_less_is_right",
        "an_error_of_the_grader_misses_nothing",
        "nothing_yet_behind_an_error_of_the_grader",
        "a_failure_is_no_error_of_the_grader",
        "an_error_of_the_grader_is_no_limit",
        "nothing_for_what_is_not_offered",
    ],
)
def test_points_follow_from_outcomes(outcomes, earned):
    assert points(**outcomes) == earned


def test_the_components_of_the_assignment_have_its_points():
    wanted = {"naive_ddp": 5, "ddp_individual_parameters": 5, "ddp_bucketed": 10, "sharded_optimizer": 15, "fsdp": 15}
    assert {name: sum(one.points for one in COMPONENTS[name].aspects) for name in wanted} == wanted


@pytest.mark.parametrize("component", COMPONENTS.values(), ids=list(COMPONENTS))
def test_one_failure_costs_at_most_a_third_unless_it_is_essential(component):
    essential = {check for aspect in component.aspects if aspect.essential for check in aspect.checks}
    core = [check for check in component.checks if check.level == "core"]
    worth = sum(aspect.points for aspect in component.aspects)
    dear = {}
    for broken in core:
        outcomes = {}
        for check in core:
            failed = [one for one in check.requires if outcomes[one] != PASSED]
            behind = failed and (outcomes[failed[0]].behind or failed[0])
            outcomes[check.id] = Outcome("not_run", behind) if failed else FAILED if check is broken else PASSED
        earned = total(marks(component.aspects, outcomes))
        if broken.id not in essential and earned < worth * 2 / 3:
            dear[broken.id] = earned
    assert not dear
