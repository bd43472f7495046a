"""What is expected of collectives holds where it should, and says what was seen where it does not."""

import pickle

import pytest
from told_records import Story

from pytest_ddp.errors import UsageError

# two buckets, the first while a gradient is still to come; both are waited for when backward has returned
OVERLAPPED = "backward, gradient, launch a, gradient, launch b, returned, wait a, end a, wait b, end b"
# the same, waited for in a callback at the end of backward
AT_THE_END = "backward, gradient, launch a, gradient, launch b, wait a, end a, wait b, end b, returned"
BLOCKING = "backward, gradient, launch a, wait a, end a, gradient, launch b, wait b, end b, returned"
AFTERWARDS = "backward, gradient, gradient, returned, launch a, wait a, end a, launch b, wait b, end b"
FORGOTTEN = "backward, gradient, launch a, gradient, launch b, returned, wait a, end a"


def failing(story: str, expectation: str) -> str:
    """Return what an expectation says that is not met; "" if it is."""
    try:
        getattr(Story(story).selection, expectation)()
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
@pytest.mark.parametrize("expectation", TABLE)
def test_what_is_expected_of_each_holds_for_some_and_not_for_others(expectation, story):
    assert (failing(story, expectation) == "") == (story in TABLE[expectation])


@pytest.mark.parametrize("story", [OVERLAPPED, AT_THE_END, BLOCKING, FORGOTTEN])
def test_all_buckets_but_the_last_are_launched_before_the_last_gradient(story):
    Story(story).selection[:-1].assert_launched_before_last_gradient()


@pytest.mark.parametrize("expectation", TABLE)
def test_of_no_operations_nothing_holds(expectation):
    assert failing("backward, gradient, gradient, returned", expectation).endswith(", saw none")


def test_what_was_not_launched_inside_backward_is_listed():
    assert failing(AFTERWARDS, "assert_launched_inside_backward") == (
        "expected that all operations were launched inside backward; 2 of 2 were not:\n"
        "  all_reduce #1 float32[4] (train.py:1): launched outside backward\n"
        "  all_reduce #2 float32[4] (train.py:2): launched outside backward"
    )


def test_where_it_was_launched_or_waited_for_instead_is_said():
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


def test_none_where_some_are_expected():
    with pytest.raises(AssertionError, match=r"^expected 1 operations \(broadcast\), saw 0$"):
        Story(OVERLAPPED).selection.select("broadcast").assert_count(1)


def test_bytes_are_those_of_all_together():
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
def test_how_many_must_be_said_in_one_way(keywords):
    with pytest.raises(UsageError, match="give an exact number, or at_least=, at_most= or both; got exactly="):
        Story(OVERLAPPED).selection.assert_count(**keywords)


def test_very_many_operations_are_listed_in_part():
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


def test_selections_of_selections_and_slices_say_so():
    found = MIXED.selection.select("all_reduce").select(dtype="float32")[1:]
    assert list(found) == [MIXED.entries["c"]]
    assert found.selected == "all_reduce of float32[1:]"
    assert found[-1] == MIXED.entries["c"]
    assert repr(found) == "<1 operations:\n  all_reduce #3 float32[4] (train.py:3)>"


def test_an_operation_that_does_not_exist_is_no_selection():
    with pytest.raises(
        UsageError, match=r"no operation is named 'allreduce'; the names are all_gather, .*, all_reduce"
    ):
        MIXED.selection.select("allreduce")
