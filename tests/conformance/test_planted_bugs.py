"""The judge judged: each planted bug is caught, first by the check named for it; each check catches one first."""

from pathlib import Path

import pytest
from bug import Bug
from planted_bugs import BUGS

from conformance.components.registry import COMPONENTS

LOOP_CHECKS = {name: one.checks for name, one in COMPONENTS.items() if one.contract.kind == "part"}

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"


def soonest(component: str) -> Bug:
    """Return the bug of a component that is caught by the earliest of its checks."""
    order = [check.id for check in COMPONENTS[component].checks]
    return min((bug for bug in BUGS if bug.component == component), key=lambda bug: order.index(bug.check))


# One of each component in every run; all of them in the long lane, and with five seeds by `ci/mutants`.
_SAMPLE = {soonest(component) for component in COMPONENTS}
_PARAMS = [pytest.param(bug, id=str(bug), marks=() if bug in _SAMPLE else pytest.mark.long) for bug in BUGS]


@pytest.mark.parametrize("bug", _PARAMS)
def test_a_planted_bug_is_caught_and_named(first_failed, submit, bug):
    failed = first_failed(submit(**bug.planted()), bug.component)
    assert (failed.id, failed.status) == (bug.check, "failed"), failed.message
    assert bug.words in f"{failed.message}\n{failed.diagnosis}"


def test_there_are_more_than_a_hundred_and_each_is_told_from_the_others():
    assert len({str(bug) for bug in BUGS}) == len(BUGS) > 100


def test_the_table_lists_every_bug_with_its_check_and_words():
    rows = [line[2:-2].split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [(row[0], row[3], row[5]) for row in rows[1:]] == [(bug.component, bug.check, bug.words) for bug in BUGS]


def test_reports_name_or_advise_on_more_than_four_bugs_in_five():
    """What a report says of a bug, beyond the check that failed, is asserted for each that has words."""
    assert sum(bool(bug.words) for bug in BUGS) > 0.8 * len(BUGS)


def test_every_check_catches_a_bug_first():
    assert {check.id for checks in [one.checks for one in COMPONENTS.values()] for check in checks} == {
        bug.check for bug in BUGS
    }


def test_every_check_of_a_part_catches_a_bug_of_that_part_first():
    assert {(name, check.id) for name, checks in LOOP_CHECKS.items() for check in checks} <= {
        (bug.component, bug.check) for bug in BUGS
    }
