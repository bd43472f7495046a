"""What cannot be sent to a rank, or back, is named, with the way around."""

import threading

import cloudpickle
import pytest

from pytest_ddp import UsageError
from pytest_ddp.remote_calls.pickling import pack_call, pack_result

LOCK = threading.Lock()


def test_functions_and_arguments_arrive():
    assert cloudpickle.loads(pack_call(max, (1, 2), {"key": abs})) == (max, (1, 2), {"key": abs})


def test_no_function():
    with pytest.raises(UsageError, match=r"takes a function, then its arguments; got 5"):
        pack_call(5, (), {})


@pytest.mark.parametrize(
    ("arguments", "keywords", "culprit"),
    [
        (
            (1, LOCK),
            {},
            r"argument 2, a _thread\.lock, cannot travel to the ranks \(cannot pickle '_thread.lock' object\)",
        ),
        (
            (),
            {"items": (i for i in "ab")},
            r"argument 'items', a generator, cannot travel .* make it there, inside the",
        ),
    ],
)
def test_arguments_that_cannot_travel(arguments, keywords, culprit):
    with pytest.raises(UsageError, match=culprit):
        pack_call(print, arguments, keywords)


def test_variables_of_the_function_that_cannot_travel():
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"variable 'lock' that the function uses, a _thread\.lock, cannot"):
        pack_call(lambda: lock, (), {})


def test_results_that_cannot_travel():
    assert cloudpickle.loads(pack_result([1])) == [1]
    with pytest.raises(
        UsageError, match=r"what the function returned, a _thread.lock, cannot travel back .*: return plain"
    ):
        pack_result(LOCK)
