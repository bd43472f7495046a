"""What is too long keeps its beginning and its end."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcomes.text_limits import LINE_LIMIT, both_ends, bounded, one_line

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.text(), st.integers(2, 20))
def test_a_text_keeps_both_ends_or_is_whole(text, limit):
    short = both_ends(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        half = limit // 2
        assert short.startswith(text[:half])
        assert short.endswith(text[-half:])
        assert f"\n... {len(text) - 2 * half} characters left out ...\n" in short


@given(PLAIN)
def test_what_is_short_stays_as_it_is(value):
    assert bounded(value) == value


def test_strings_and_lists_of_lines_are_bounded_wherever_they_are():
    value = {"message": "x" * 100, "entries": [{"lines": ["begin", *["x" * 9] * 50, "end"]}], "number": 3}
    short = bounded(value, 20)
    assert short["number"] == 3
    assert len(short["message"]) < 60
    lines = short["entries"][0]["lines"]
    assert (lines[0], lines[-1]) == ("begin", "end")
    assert len(lines) < 10


def test_a_name_and_its_value_stay_two():
    name, text = bounded({"args": [["tokens", "x" * 100]]}, 20)["args"][0]
    assert name == "tokens"
    assert len(text) < 60


def test_a_line_is_the_first_and_not_endless():
    assert one_line("\n first\nsecond") == "first"
    assert one_line("x" * 2 * LINE_LIMIT) == "x" * LINE_LIMIT + "..."
