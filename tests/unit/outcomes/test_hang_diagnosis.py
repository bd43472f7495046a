"""Who waits for whom is read off the collectives that the ranks entered."""

import pytest

from pytest_ddp.outcomes.hang_diagnosis import standstill
from pytest_ddp.outcomes.outcome import Raised, Returned, TimedOut
from pytest_ddp.protocol.flight_recorder import SLOT, SLOTS


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
        ([("send #1 to rank 1 float32[4]",), ("recv #1 from rank 0 float32[4]",)], []),
        ([("recv #1 float32[4]",), ()], []),
        (
            [("recv #1 from rank 1",), ("recv #1 from rank 0", "all_reduce #1")],
            [
                "rank 1 waited in all_reduce #1, which rank 0 never entered",
                "rank 0 waited in recv #1 from rank 1, which rank 1 never sent",
            ],
        ),
        (
            [("send #1 to rank 1", "send #2 to rank 1"), ("recv #1 from rank 0",)],
            ["rank 0 waited in send #2 to rank 1, which rank 1 never received"],
        ),
        ([("send #1 to rank 1",), ("recv #1",)], []),
        (
            [("recv #1 from rank 1 in group 1 (0-1)",), ("send #1 to rank 0",)],
            [
                "rank 0 waited in recv #1 from rank 1 in group 1 (0-1), which rank 1 never sent",
                "rank 1 waited in send #1 to rank 0, which rank 0 never received",
            ],
        ),
        (
            [("all_reduce #1 in group 1 (0-1)",), (), ("broadcast #1 in group 2 (2-3)",), ()],
            [
                "rank 0 waited in all_reduce #1 in group 1 (0-1), which rank 1 never entered",
                "rank 2 waited in broadcast #1 in group 2 (2-3), which rank 3 never entered",
            ],
        ),
        (
            [("all_reduce #1 float32[3] in group 1 (0-1)",), ("all_reduce #1 float32[3]",)],
            [
                "rank 1 waited in all_reduce #1 float32[3], which rank 0 never entered",
                "rank 0 waited in all_reduce #1 float32[3] in group 1 (0-1), which rank 1 never entered",
            ],
        ),
        ([("all_reduce #1 in group mine",), ()], []),
        ([("all_reduce #1 in group 1 (0-123456)",), ()], []),
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


def test_nothing_is_said_of_what_a_full_record_may_have_lost():
    full = tuple(f"barrier #{number}" for number in range(1, SLOTS + 1))
    earlier = ("all_reduce #1 in group 1 (0-1)", *full[: SLOTS - 1])
    assert standstill(hanging(earlier, full)) == [f"rank 1 waited in barrier #{SLOTS}, which rank 0 never entered"]


def test_an_entry_that_was_cut_is_taken_for_no_other_group_s():
    ranks = ",".join(map(str, range(0, 200, 3)))
    cut = f"all_reduce #1 float32[4] in group 1 ({ranks})"[:SLOT]
    assert standstill(hanging((cut,), ())) == []
    assert standstill(hanging((cut,), ("barrier #1",))) == []
