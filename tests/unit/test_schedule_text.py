"""Schedules as text: what is printed is read back as the same decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.schedule_text import format_schedule, parse_schedule
from pytest_ddp.strategies import Choices, schedules


@given(st.lists(st.integers(0, 9)) | schedules())
def test_a_text_stands_for_the_decisions_that_differ_from_the_default(choices):
    text = format_schedule(choices)
    read = parse_schedule(text)
    assert [*read, *[0] * (len(choices) - len(read))] == list(choices)
    assert repr(Choices(choices)) == repr(text)


@pytest.mark.parametrize(
    ("text", "choices"),
    [("", ()), ("2:1", (0, 0, 1)), ("0,1", (0, 1)), (" 1:3, 2", (0, 3, 2)), ("1:3,4:2", (0, 3, 0, 0, 2))],
)
def test_a_number_alone_is_the_next_decision(text, choices):
    assert parse_schedule(text) == choices


@pytest.mark.parametrize("text", ["x", "1:", "-1", "3:1,2:1", "1:1:1", "1.5"])
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="expected decisions such as"):
        parse_schedule(text)
