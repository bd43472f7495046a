"""A table of checks is validate when it is imported: each mistake in it is named."""

from dataclasses import replace

import pytest

from conformance.checks.check import Check, validate
from conformance.strategies.wrapper import plain


def passes(_trial):
    """Hold nothing."""


FIRST = Check("runs", "Steps run to their end.", plain, passes, "numbers", rules_out=("never synchronised",))
SECOND = replace(FIRST, id="trains[convolution]", requires=("runs",))
KNOWN = {"never synchronised"}


def test_a_table_in_order_is_valid():
    assert validate("ddp", (FIRST, SECOND), KNOWN) is None


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
        validate("ddp", table, KNOWN)
    assert problem in str(told.value)
