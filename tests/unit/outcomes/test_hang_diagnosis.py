"""Which ranks waited for which is read off the operations that they entered."""

import pytest

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint
from pytest_ddp.outcomes.hang_diagnosis import describe_hang, operation_disagreement
from pytest_ddp.outcomes.outcome import Raised, Returned, TimedOut
from pytest_ddp.protocol.flight_recorder import LATEST

WORLD = (0, 1, 2, 3)
PAIR, OTHER_PAIR = {"group": "1", "ranks": (0, 1), "default": False}, {"group": "2", "ranks": (2, 3), "default": False}


def collective(op: str, number: int = 1, **words) -> Fingerprint:
    return Fingerprint(op, "0", WORLD, number, -1)._replace(**words)


def message(op: str, peer: int, number: int = 1, **words) -> Fingerprint:
    return collective(op, number, peer=peer, **words)


def on_rank(rank: int, *entered: Fingerprint) -> tuple[Fingerprint, ...]:
    return tuple(one._replace(rank=rank) for one in entered)


def hanging(*entered: tuple[Fingerprint, ...]):
    return [TimedOut(rank=rank, timeout=1, collectives=on_rank(rank, *own)) for rank, own in enumerate(entered)]


ALL_REDUCE, BARRIER = collective("all_reduce"), collective("barrier", 2)


@pytest.mark.parametrize(
    ("entered", "sentences"),
    [
        (
            [(ALL_REDUCE, BARRIER), (ALL_REDUCE,)],
            ["rank 0 waited in barrier #2, which rank 1 never entered"],
        ),
        (
            [(ALL_REDUCE,), (), (ALL_REDUCE,)],
            ["ranks 0, 2 waited in all_reduce #1, which rank 1 never entered"],
        ),
        (
            [(collective("all_reduce", 1), collective("all_reduce", 2), collective("all_reduce", 3)), ()],
            ["rank 0 waited in all_reduce #1, which rank 1 never entered"],
        ),
        (
            [(ALL_REDUCE,), (collective("all_reduce", dtype="float32", shapes="[5]"),)],
            [
                "rank 0 waited in all_reduce #1, where rank 1 called all_reduce #1 float32[5]",
                "rank 1 waited in all_reduce #1 float32[5], where rank 0 called all_reduce #1",
            ],
        ),
        ([(collective("gather", shapes="[4]"),), (collective("gather", shapes="[5]"),)], []),
        ([(message("send", 1),), (message("recv", 0),)], []),
        (
            [(message("recv", ANY_RANK),), ()],
            ["rank 0 waited in recv #1 from any rank, to which rank 1 never sent"],
        ),
        (
            [(message("recv", 1),), (message("recv", 0), ALL_REDUCE)],
            [
                "rank 0 waited in recv #1 from rank 1, which never sent it",
                "rank 1 waited in all_reduce #1, which rank 0 never entered",
            ],
        ),
        (
            [(message("send", 1), message("send", 1, 2)), (message("recv", 0),)],
            ["rank 0 waited in send #2 to rank 1, which never received it"],
        ),
        ([(message("send", 1),), (message("recv", ANY_RANK),)], []),
        (
            [(message("recv", 1, **PAIR),), (message("send", 0),)],
            [
                "rank 0 waited in recv #1 from rank 1 in group '1' of ranks 0, 1, which never sent it",
                "rank 1 waited in send #1 to rank 0, which never received it",
            ],
        ),
        (
            [(collective("all_reduce", **PAIR),), (), (collective("broadcast", **OTHER_PAIR),), ()],
            [
                "rank 0 waited in all_reduce #1 in group '1' of ranks 0, 1, which rank 1 never entered",
                "rank 2 waited in broadcast #1 in group '2' of ranks 2, 3, which rank 3 never entered",
            ],
        ),
        ([(BARRIER,), (BARRIER,)], []),
        ([(BARRIER,)], []),
    ],
)
def test_sentences(entered, sentences):
    assert describe_hang(hanging(*entered)) == sentences


def test_ranks_that_raised_or_returned_are_those_that_others_wait_for():
    own = Raised(rank=1, kind="ValueError", message="", traceback="", collectives=on_rank(1, ALL_REDUCE))
    passed = Returned(rank=2, collectives=on_rank(2, ALL_REDUCE))
    waits = hanging((ALL_REDUCE, BARRIER))
    assert describe_hang([*waits, own, passed]) == ["rank 0 waited in barrier #2, which ranks 1, 2 never entered"]
    assert describe_hang([own, passed]) == []


def test_nothing_is_said_if_an_outcome_says_it():
    first, second = hanging((ALL_REDUCE,), ())
    waits = TimedOut(rank=0, timeout=1, collectives=first.collectives, waits="waits in all_reduce #1")
    assert describe_hang([first, second])
    assert describe_hang([waits, second]) == []


def test_nothing_is_said_of_what_a_full_record_may_have_lost():
    full = tuple(collective("barrier", number) for number in range(1, LATEST + 1))
    earlier = (collective("all_reduce", **PAIR), *full[:-1])
    assert describe_hang(hanging(earlier, full)) == [f"rank 1 waited in barrier #{LATEST}, which rank 0 never entered"]


GATHER, SUM = collective("gather"), collective("all_reduce", dtype="float32", shapes="[4]")
SHAPE = "all ranks must call it with the same shape"


@pytest.mark.parametrize(
    ("entered", "sentence"),
    [
        ([(ALL_REDUCE, BARRIER), (ALL_REDUCE,), (ALL_REDUCE, BARRIER)], None),
        (
            [(SUM,), (SUM._replace(shapes="[5]"),), (SUM,)],
            "ranks 0, 2 called all_reduce #1 float32[4], rank 1 called all_reduce #1 float32[5]; " + SHAPE,
        ),
        (
            [(ALL_REDUCE, BARRIER), (ALL_REDUCE, collective("gather", 2))],
            (
                "rank 0 called barrier #2, rank 1 called gather #2; all ranks of a group must call the same "
                "collectives in the same order"
            ),
        ),
        (
            [(message("send", 1, dtype="float32", elements=5),), (message("recv", 0, dtype="float32", elements=3),)],
            (
                "rank 0 called send #1 float32 to rank 1, rank 1 called recv #1 float32 from rank 0; a send and its "
                "receive must agree in size"
            ),
        ),
        ([(message("send", 1, elements=5),), (message("recv", ANY_RANK, elements=3),)], None),
        # The operations of the past, and those of groups of other ranks with the same name, are not the cause.
        ([(SUM, BARRIER), (SUM._replace(shapes="[5]"), BARRIER)], None),
        ([(SUM,), (SUM._replace(shapes="[5]", ranks=(1,)),)], None),
        # A group that rank 0 has made anew counts from 1 again.
        ([(ALL_REDUCE, GATHER), (ALL_REDUCE,)], None),
    ],
)
def test_the_operation_on_which_ranks_disagree(entered, sentence):
    found = operation_disagreement(hanging(*entered))
    assert found == (sentence and f"the ranks disagree: {sentence}")
