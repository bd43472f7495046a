"""Assertions about operations pass and fail as documented, and a failure lists what was seen."""

import pickle

import pytest
from stories import Story

from pytest_ddp.errors import UsageError

# two buckets, the first before the last gradient; both are waited for after backward
OVERLAPPED = "backward, gradient, launch a, gradient, launch b, returned, wait a, end a, wait b, end b"
# both are waited for in a callback at the end of backward
AT_THE_END = "backward, gradient, launch a, gradient, launch b, wait a, end a, wait b, end b, returned"
BLOCKING = "backward, gradient, launch a, wait a, end a, gradient, launch b, wait b, end b, returned"
AFTERWARDS = "backward, gradient, gradient, returned, launch a, wait a, end a, launch b, wait b, end b"
FORGOTTEN = "backward, gradient, launch a, gradient, launch b, returned, wait a, end a"


def failing(story: str, assertion: str) -> str:
    """Return the message of an assertion that fails; "" if it passes."""
    try:
        getattr(Story(story).selection, assertion)()
    except AssertionError as error:
        return str(error)
    return ""


TABLE = {
    "assert_launched_inside_backward": {OVERLAPPED, AT_THE_END, BLOCKING, FORGOTTEN},
    "assert_launched_before_last_gradient": set(),
    "assert_waited": {OVERLAPPED, AT_THE_END, BLOCKING, AFTERWARDS},
    "assert_waited_after_last_gradient": {OVERLAPPED, AT_THE_END, AFTERWARDS},
    "assert_waited_after_backward": {OVERLAPPED, AFTERWARDS},
}


@pytest.mark.parametrize("story", [OVERLAPPED, AT_THE_END, BLOCKING, AFTERWARDS, FORGOTTEN])
@pytest.mark.parametrize("assertion", TABLE)
def test_an_assertion_about_each_operation_passes_only_for_the_right_stories(assertion, story):
    assert (failing(story, assertion) == "") == (story in TABLE[assertion])


@pytest.mark.parametrize("story", [OVERLAPPED, AT_THE_END, BLOCKING, FORGOTTEN])
def test_all_buckets_but_the_last_are_launched_before_the_last_gradient(story):
    Story(story).selection[:-1].assert_launched_before_last_gradient()


@pytest.mark.parametrize("assertion", TABLE)
def test_an_assertion_about_each_operation_fails_without_operations(assertion):
    assert failing("backward, gradient, gradient, returned", assertion).endswith(", saw none")


def test_operations_launched_outside_backward_are_listed():
    assert failing(AFTERWARDS, "assert_launched_inside_backward") == (
        "expected that all operations were launched inside backward; 2 of 2 were not:\n"
        "  all_reduce #1 float32[4] (train.py:1): launched outside backward\n"
        "  all_reduce #2 float32[4] (train.py:2): launched outside backward"
    )


def test_a_message_says_when_an_operation_was_launched_or_waited_for():
    assert failing(OVERLAPPED, "assert_launched_before_last_gradient") == (
        "expected that all operations were launched before the last gradient was ready; 1 of 2 was not:\n"
        "  all_reduce #2 float32[4] (train.py:2): launched inside backward 1, with 2 of 2 gradients ready"
    )
    assert failing(BLOCKING, "assert_waited_after_last_gradient") == (
        "expected that all operations were waited for after the last gradient was ready; 1 of 2 was not:\n"
        "  all_reduce #1 float32[4] (train.py:1): first waited for inside backward 1, with 1 of 2 gradients ready"
    )
    assert failing(FORGOTTEN, "assert_waited") == (
        "expected that all operations were waited for; 1 of 2 was not:\n"
        "  all_reduce #2 float32[4] (train.py:2): never waited for"
    )


def test_a_wait_in_the_next_backward_is_after_its_own():
    story = "backward, gradient, gradient, launch a, returned, backward, wait a, end a, gradient, gradient, returned"
    Story(story).selection.assert_waited_after_backward()


def test_a_wait_in_a_backward_that_still_runs_is_not_after_it():
    story = "backward, gradient, gradient, launch a, wait a, end a"
    with pytest.raises(AssertionError, match="after backward had returned"):
        Story(story).selection.assert_waited_after_backward()


def test_a_backward_inside_another_counts_as_part_of_it():
    inner = Story("backward, backward, gradient, launch a, gradient, returned, wait a, end a")
    with pytest.raises(AssertionError, match="after backward had returned"):
        inner.selection.assert_waited_after_backward()


COUNTS = [
    ((2,), {}, ""),
    ((3,), {}, "expected 3 operations, saw 2:\n"),
    ((0,), {}, "expected 0 operations, saw 2:\n"),
    ((), {"at_least": 2}, ""),
    ((), {"at_least": 3}, "expected at least 3 operations, saw 2:\n"),
    ((), {"at_most": 1}, "expected at most 1 operations, saw 2:\n"),
    ((), {"at_least": 3, "at_most": 4}, "expected at least 3 and at most 4 operations, saw 2:\n"),
]


@pytest.mark.parametrize(("arguments", "keywords", "message"), COUNTS)
def test_counts(arguments, keywords, message):
    selection = Story(OVERLAPPED).selection
    if not message:
        selection.assert_count(*arguments, **keywords)
        return
    with pytest.raises(AssertionError) as caught:
        selection.assert_count(*arguments, **keywords)
    assert str(caught.value) == (
        f"{message}  all_reduce #1 float32[4] (train.py:1)\n  all_reduce #2 float32[4] (train.py:2)"
    )


def test_no_operations_where_one_is_expected():
    with pytest.raises(AssertionError, match=r"^expected 1 operations \(broadcast\), saw 0$"):
        Story(OVERLAPPED).selection.select("broadcast").assert_count(1)


def test_bytes_are_summed():
    selection = Story(OVERLAPPED, details={"b": {"bytes": 4000, "shapes": ((1000,),)}}).selection
    selection.assert_bytes(4016)
    selection.assert_bytes(at_least=4016, at_most=4016)
    with pytest.raises(AssertionError) as caught:
        selection.assert_bytes(at_most=4015)
    assert str(caught.value) == (
        "expected at most 4,015 bytes in operations, saw 4,016:\n"
        "  all_reduce #1 float32[4] (train.py:1): 16 bytes\n"
        "  all_reduce #2 float32[1000] (train.py:2): 4,000 bytes"
    )


@pytest.mark.parametrize("keywords", [{}, {"exactly": 1, "at_most": 2}])
def test_a_number_or_bounds_must_be_given(keywords):
    with pytest.raises(UsageError, match="give an exact number, or at_least=, at_most= or both; got exactly="):
        Story(OVERLAPPED).selection.assert_count(**keywords)


def test_a_long_list_is_cut():
    many = Story(", ".join(f"launch {number}" for number in range(100)))
    with pytest.raises(AssertionError) as caught:
        many.selection.assert_count(1)
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert lines[11] == "  ... 80 operations left out ..."
    assert lines[-1] == "  all_reduce #100 float32[4] (train.py:100)"


MIXED = Story(
    "launch a, launch b, backward, launch c, gradient, gradient, returned",
    details={"b": {"op": "broadcast", "dtype": "int64"}, "c": {"group": "1"}},
)
CHOICES = [
    (("all_reduce",), {}, "ac", "all_reduce"),
    (("all_reduce", "broadcast"), {}, "abc", "all_reduce or broadcast"),
    ((), {"group": "1"}, "c", "in group '1'"),
    ((), {"dtype": "int64"}, "b", "of int64"),
    ((), {"inside_backward": True}, "c", "launched inside backward"),
    (("all_reduce",), {"inside_backward": False}, "a", "all_reduce launched outside backward"),
    (("barrier",), {}, "", "barrier"),
]


@pytest.mark.parametrize(("ops", "keywords", "names", "words"), CHOICES)
def test_operations_are_selected(ops, keywords, names, words):
    found = MIXED.selection.select(*ops, **keywords)
    assert list(found) == [MIXED.entries[name] for name in names]
    assert found.selected == words
    assert pickle.loads(pickle.dumps(found)) == list(found)  # noqa: S301  our own


def test_selections_of_selections_and_slices_are_described():
    found = MIXED.selection.select("all_reduce").select(dtype="float32")[1:]
    assert list(found) == [MIXED.entries["c"]]
    assert found.selected == "all_reduce of float32[1:]"
    assert found[-1] == MIXED.entries["c"]
    assert repr(found) == "<1 operations:\n  all_reduce #3 float32[4] (train.py:3)>"


def test_select_raises_for_an_unknown_operation():
    with pytest.raises(
        UsageError, match=r"no operation is named 'allreduce'; the names are all_gather, .*, all_reduce"
    ):
        MIXED.selection.select("allreduce")
