"""Which operations of two ranks fit one another, and what is said of those that do not."""

import pytest

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import receives, sends
from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint
from pytest_ddp.operations.matching import differences, first_mismatch, mismatch


def collective(op: str, rank: int = 0, **words) -> Fingerprint:
    plain = {"dtype": "float32", "shapes": "[4]", "elements": 4, "source": f"train.py:{10 + rank}"}
    return Fingerprint(op, "0", (0, 1), 7, rank)._replace(**{**plain, **words})


def message(op: str, rank: int, **words) -> Fingerprint:
    return collective(op, rank, peer=1 - rank, **words)


ROOTED = ["broadcast", "reduce", "gather", "scatter"]
REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced"]
SAME_SHAPE = [*REDUCING, "broadcast", "all_gather_into_tensor", "all_gather_coalesced"]
PARTED = ["all_gather", "gather", "scatter", "all_to_all", "all_to_all_single"]
OPERATIONS = sorted({*ROOTED, *SAME_SHAPE, *PARTED, "reduce_scatter_tensor_coalesced"})


@pytest.mark.parametrize("op", [*OPERATIONS, "barrier", "monitored_barrier", "an operation of tomorrow"])
def test_what_is_the_same_fits(op):
    assert differences(collective(op), collective(op, 1, source="elsewhere.py:1", asynchronous=True)) == []


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("other", ["barrier", "all_reduce_of_tomorrow"])
def test_operations_must_be_the_same(op, other):
    assert differences(collective(op), collective(other, 1)) == ["operation"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_dtypes_must_be_the_same(op):
    assert differences(collective(op), collective(op, 1, dtype="float64")) == ["dtype"]


@pytest.mark.parametrize("op", ROOTED)
def test_roots_must_be_the_same(op):
    assert differences(collective(op, root=0), collective(op, 1, root=1)) == ["root"]


@pytest.mark.parametrize("op", REDUCING)
def test_reductions_must_be_the_same(op):
    assert differences(collective(op, reduction="SUM"), collective(op, 1, reduction="MAX")) == ["reduction"]


@pytest.mark.parametrize("op", SAME_SHAPE)
def test_shapes_must_be_the_same_where_all_ranks_bring_the_same(op):
    assert differences(collective(op), collective(op, 1, shapes="[2, 2]")) == ["shape"]


@pytest.mark.parametrize("op", PARTED)
def test_shapes_may_differ_where_each_rank_brings_its_own(op):
    assert differences(collective(op), collective(op, 1, shapes="[5]", elements=5)) == []


def test_several_differences_are_all_named():
    mine, theirs = collective("reduce", root=0), collective("reduce", 1, root=1, dtype="int64", shapes="[5]")
    assert differences(mine, theirs) == ["root", "dtype", "shape"]


def test_messages_must_agree_in_dtype_and_size_but_not_in_shape():
    send = message("send", 0)
    assert differences(send, message("recv", 1, shapes="[2, 2]")) == []
    assert differences(send, message("recv", 1, dtype="int64", elements=5)) == ["dtype", "size"]


@pytest.mark.parametrize("recv", [{"peer": ANY_RANK}, {"after_any_rank": True}])
def test_a_message_may_have_been_taken_by_a_receive_from_anyone(recv):
    theirs = message("recv", 1, dtype="int64")._replace(**recv)
    assert differences(message("send", 0), theirs) == []


def entry(op: str, shapes=(), outputs=(), splits=((), ())) -> Entry:
    return Entry(op=op, group="0", ranks=(0, 1), shapes=shapes, outputs=outputs, splits=splits)


@pytest.mark.parametrize(
    ("mine", "theirs", "fit"),
    [
        (entry("all_gather", ((4,),), ((4,), (5,))), entry("all_gather", ((5,),), ((4,), (5,))), True),
        (entry("all_gather", ((4,),), ((4,), (4,))), entry("all_gather", ((5,),), ((5,), (5,))), False),
        (entry("gather", ((4,),), ((4,), (5,))), entry("gather", ((5,),)), True),
        (entry("gather", ((4,),), ((4,), (4,))), entry("gather", ((5,),)), False),
        (entry("scatter", ((4,), (5,)), ((4,),)), entry("scatter", ((5,),)), True),
        (entry("scatter", ((4,), (4,)), ((4,),)), entry("scatter", ((5,),)), False),
        (entry("all_to_all", ((1,), (2,)), ((1,), (3,))), entry("all_to_all", ((3,), (4,)), ((2,), (4,))), True),
        (entry("all_to_all", ((1,), (2,)), ((1,), (3,))), entry("all_to_all", ((2,), (4,)), ((2,), (4,))), False),
        (
            entry("all_to_all_single", ((4, 2),), ((5, 2),), ((1, 3), (1, 4))),
            entry("all_to_all_single", ((6, 2),), ((5, 2),), ((4, 2), (3, 2))),
            True,
        ),
        (
            entry("all_to_all_single", ((4,),), ((4,),), ((1, 3), (1, 3))),
            entry("all_to_all_single", ((4,),), ((4,),), ((1, 3), (1, 3))),
            False,
        ),
        (entry("all_to_all_single", ((4,),), ((4,),)), entry("all_to_all_single", ((4,),), ((4,),)), True),
        (entry("all_to_all_single", ((4,),), ((4,),)), entry("all_to_all_single", ((6,),), ((6,),)), False),
    ],
    ids=str,
)
def test_a_rank_takes_as_much_as_the_other_gives(mine, theirs, fit):
    one = collective(mine.op, sends=sends(mine), receives=receives(mine))
    other = collective(mine.op, 1, sends=sends(theirs), receives=receives(theirs))
    assert differences(one, other) == ([] if fit else ["size"])
    assert differences(other, one) == ([] if fit else ["size"])


def test_parts_of_ranks_that_are_not_in_the_group_are_not_compared():
    mine, theirs = collective("all_to_all", sends=(1, 2)), collective("all_to_all", 7, receives=(3, 4))
    assert differences(mine, theirs) == differences(theirs, mine) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (
            collective("broadcast", 1, root=0),
            collective("all_reduce", reduction="MAX"),
            (
                "rank 1 calls broadcast #7 float32[4] with root 0 at train.py:11, where rank 0 called all_reduce #7 "
                "float32[4] (MAX) at train.py:10; all ranks of a group must call the same collectives in the same order"
            ),
        ),
        (
            collective("all_reduce", 1, shapes="[5]", dtype="int64"),
            collective("all_reduce"),
            (
                "rank 1 calls all_reduce #7 int64[5] at train.py:11, where rank 0 called all_reduce #7 float32[4] at "
                "train.py:10; all ranks must call it with the same dtype and shape"
            ),
        ),
        (
            message("recv", 1, dtype="int64", tag=3),
            message("send", 0, tag=3),
            (
                "rank 1 calls recv #7 int64[4] from rank 0 with tag 3 at train.py:11, where rank 0 called send #7 "
                "float32[4] to rank 1 with tag 3 at train.py:10; a send and its receive must agree in dtype"
            ),
        ),
        (
            collective("gather", 1, root=0, shapes="[5]", sends=(5, 5)),
            collective("gather", root=0, sends=(4, 4), receives=(4, 4)),
            (
                "rank 1 calls gather #7 float32[5] with root 0 at train.py:11, where rank 0 called gather #7 "
                "float32[4] with root 0 at train.py:10; rank 1 sends 5 elements to rank 0, which receives 4"
            ),
        ),
        (
            collective("barrier", 1, dtype="", shapes="", default=False, group="pair"),
            collective("all_reduce", default=False, group="pair"),
            (
                "rank 1 calls barrier #7 in group 'pair' of ranks 0, 1 at train.py:11, where rank 0 called all_reduce "
                "#7 float32[4] in group 'pair' of ranks 0, 1 at train.py:10; all ranks of a group must call the same "
                "collectives in the same order"
            ),
        ),
    ],
)
def test_a_mismatch_in_words(mine, theirs, text):
    assert mismatch(mine, theirs) == text
    assert mismatch(mine, mine._replace(rank=0)) is None or mine.peer is not None


def test_the_first_mismatch_of_several_ranks_is_found():
    ours, theirs = collective("all_reduce"), collective("all_reduce", 1, dtype="float64")
    assert first_mismatch({0: [ours], 1: [collective("all_reduce", 1)]}) is None
    rank, text = first_mismatch({0: [ours], 1: [theirs]}) or (-1, "")
    assert rank == 1
    assert "all ranks must call it with the same dtype" in text
    assert first_mismatch({0: [ours, ours], 1: [theirs]}) is None, "the group was made again"
