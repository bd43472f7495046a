"""A table of checks is validated when it is imported: each mistake in it is named."""

from dataclasses import replace

import pytest

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.validation import validate, validate_strategies
from conformance.strategies.building_blocks import having, one_of, parts
from conformance.strategies.wrapper import plain


def passes(_trial):
    """Hold nothing."""


FIRST = Check("runs", "Steps run to their end.", plain, passes, "numbers", rules_out=("never synchronised",))
SECOND = replace(FIRST, id="trains[convolution]", requires=("runs",))
ASPECTS = (Aspect("all", 1, ("runs", "trains[convolution]")),)
KNOWN = {"never synchronised"}


def test_a_table_in_order_is_valid():
    assert validate("ddp", (FIRST, SECOND), ASPECTS, KNOWN) is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ((FIRST, FIRST), "'runs' has the id of an earlier check"),
        ((SECOND, FIRST), "requires 'runs', which does not come before it"),
        ((replace(FIRST, requires=("runs",)),), "requires 'runs', which does not come before it"),
        ((replace(FIRST, level="extended"), SECOND), "is core and requires 'runs', which is extended"),
        ((replace(FIRST, rules_out=("misspelt",)),), "rules out 'misspelt', which is no known mistake"),
        ((replace(FIRST, property=" "),), "has no id or no property"),
        ((replace(FIRST, id=""),), "has no id or no property"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_the_component_and_the_check(table, problem):
    with pytest.raises(ValueError, match=r"ddp: the check '.*' ") as told:
        validate("ddp", table, ASPECTS, KNOWN)
    assert problem in str(told.value)


def test_a_check_that_the_record_names_must_be_there():
    with pytest.raises(ValueError, match="ddp: there is no check 'rums', which its record names"):
        validate("ddp", (FIRST, SECOND), ASPECTS, KNOWN, named=("runs", "rums"))


def test_two_checks_may_share_a_strategy_and_have_variants_of_it():
    varied = replace(SECOND, scenarios=one_of(plain, having(plain, batch=2), having(plain, batch=3)))
    assert validate_strategies((FIRST, SECOND, varied)) is None


def test_each_alternative_of_a_strategy_can_be_varied():
    varied = having(one_of(plain, having(plain, batch=2)), steps=3)
    assert len(parts(varied)) == 2
    assert validate_strategies((replace(FIRST, scenarios=varied),)) is None


@pytest.mark.parametrize("second", [having(plain, batch=2), one_of(plain, having(plain, batch=2))])
def test_two_strategies_with_one_name_are_refused(second):
    first = replace(FIRST, scenarios=having(plain, batch=2))
    with pytest.raises(ValueError, match=r"'trains\[convolution\]' draws from a second strategy with the name .*batch"):
        validate_strategies((first, replace(SECOND, scenarios=second)))


@pytest.mark.parametrize("ids", [("runs",), ("runs", "trains[convolution]", "runs"), ("trains[convolution]", "x")])
def test_each_core_check_is_in_one_aspect(ids):
    with pytest.raises(ValueError, match="ddp: each core check must be in one aspect, and no other: "):
        validate("ddp", (FIRST, SECOND), (Aspect("all", 1, ids),), KNOWN)
