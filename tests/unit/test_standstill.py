"""Who waits for whom is read off the collectives that the ranks entered."""

import pytest

from pytest_ddp.outcome import Raised, Returned, TimedOut
from pytest_ddp.standstill import standstill


def hanging(*records: tuple[str, ...]):
    return [TimedOut(rank=rank, timeout=1, collectives=record) for rank, record in enumerate(records)]


@pytest.mark.parametrize(
    ("records", "sentences"),
    [
        (
            [("all_reduce #1 float32[4]", "barrier #2"), ("all_reduce #1 float32[4]",)],
            ["rank 0 waited in barrier #2, which rank 1 never entered"],
        ),
        (
            [("all_reduce #1 float32[4]",), (), ("all_reduce #1 float32[4]",)],
            ["ranks 0, 2 waited in all_reduce #1 float32[4], which rank 1 never entered"],
        ),
        (
            [("all_reduce #1 float32[4]",), ("all_reduce #1 float32[5]",)],
            [
                (
                    "the ranks disagree on collective #1: rank 0 is in all_reduce #1 float32[4], rank 1 is in "
                    "all_reduce #1 float32[5]; all must call the same, in the same order"
                )
            ],
        ),
        ([("gather #1 float32[4]",), ("gather #1",)], []),
        ([("send #1 float32[4]",), ("recv #1 float32[4]",)], []),
        ([("barrier #1",), ("barrier #1",)], []),
        ([("barrier #1",)], []),
    ],
)
def test_sentences(records, sentences):
    assert standstill(hanging(*records)) == sentences


def test_ranks_that_raised_or_returned_are_those_that_others_wait_for():
    own = Raised(rank=1, kind="ValueError", message="", traceback="", collectives=("barrier #1",))
    passed = Returned(rank=2, collectives=("barrier #1",))
    waits = hanging(("barrier #1", "all_reduce #2"))
    assert standstill([*waits, own, passed]) == ["rank 0 waited in all_reduce #2, which ranks 1, 2 never entered"]
    assert standstill([own, passed]) == []
