"""The judge judged: a check catches each planted bug, and each check catches one. `ci/mutants` runs all of them."""

import pytest
from bug import Bug, fault
from bugs import BUGS
from mutants import PAGE

from conformance.components.registry import COMPONENTS


def soonest(component: str) -> Bug:
    """Return the bug of a component that is caught by the earliest of its checks."""
    order = [check.id for check in COMPONENTS[component].checks]
    return min((bug for bug in BUGS if bug.component == component), key=lambda bug: order.index(bug.check))


@pytest.mark.parametrize("bug", [soonest(component) for component in COMPONENTS], ids=str)
def test_a_planted_bug_is_caught_by_its_check(checked, submit, bug):
    assert fault(bug, checked(submit(**bug.planted()), bug.component, bug.check)) == ""


def test_each_is_planted_and_told_from_the_others():
    assert len({bug.key for bug in BUGS}) == len({str(bug) for bug in BUGS}) == len(BUGS) > 100


def test_a_check_of_its_component_catches_each_bug_and_every_check_one():
    checks = {name: {check.id for check in component.checks} for name, component in COMPONENTS.items()}
    assert [str(bug) for bug in BUGS if bug.check not in checks[bug.component]] == []
    kinds = {
        name: "any wrapper" if component.contract.kind == "wrapper" else name for name, component in COMPONENTS.items()
    }
    caught = {(kinds[bug.component], bug.check) for bug in BUGS}
    assert caught == {(kinds[name], check) for name in checks for check in checks[name]}


def test_reports_name_or_advise_on_more_than_four_bugs_in_five():
    assert sum(bool(bug.words) for bug in BUGS) > 0.8 * len(BUGS)


def test_the_page_lists_every_bug():
    assert PAGE.lists_all()
