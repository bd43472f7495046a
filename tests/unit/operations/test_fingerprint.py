"""What ranks record survives the trip, and nothing else passes for it."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.operations.fingerprint import (
    ANY_RANK,
    Fingerprint,
    Fingerprints,
    format_sizes,
    parse_sizes,
    shapes_text,
    source_text,
)
from pytest_ddp.planning.world import format_ranks, parse_ranks
from pytest_ddp.protocol.flight_recorder import RECORD

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=20)
RANKS = st.lists(st.integers(0, 99), unique=True, max_size=12).map(tuple)
NUMBERS = st.integers(1, 10**9)
SIZES = st.lists(st.integers(0, 10**6), max_size=8).map(tuple)
FINGERPRINTS = st.builds(
    Fingerprint,
    op=WORDS,
    group=WORDS,
    ranks=RANKS,
    number=NUMBERS,
    rank=st.integers(0, 99),
    peer=st.none() | st.integers(ANY_RANK, 99),
    tag=st.integers(0, 2**31),
    root=st.none() | st.integers(0, 99),
    reduction=WORDS,
    dtype=WORDS,
    shapes=WORDS,
    elements=NUMBERS,
    sends=SIZES,
    receives=SIZES,
    source=WORDS,
    asynchronous=st.booleans(),
    after_any_rank=st.booleans(),
    default=st.booleans(),
)


@given(FINGERPRINTS)
def test_fingerprints_survive_the_trip(fingerprint):
    assert Fingerprint.decode(fingerprint.encode(), fingerprint.rank) == fingerprint


@given(FINGERPRINTS, st.integers(0, 99))
def test_ranks_that_do_the_same_record_the_same(fingerprint, other):
    assert fingerprint._replace(rank=other).encode() == fingerprint.encode()


@given(st.binary(max_size=200))
def test_anything_else_is_no_fingerprint(data):
    assert Fingerprint.decode(data, 0) is None


def test_a_fingerprint_with_numbers_that_are_none_is_no_fingerprint():
    data = Fingerprint("barrier", "0", (0, 1), 1, 0).encode()
    assert Fingerprint.decode(data.replace(b"0-1", b"0-x"), 0) is None


@given(RANKS)
def test_ranks_as_text(ranks):
    assert parse_ranks(format_ranks(ranks)) == ranks


def test_ranks_in_a_row_are_short():
    assert format_ranks((0, 1, 2, 3, 6, 5)) == "0-3,6,5"


@given(SIZES)
def test_sizes_as_text(sizes):
    assert parse_sizes(format_sizes(sizes)) == sizes


def test_sizes_that_are_too_many_are_left_out():
    assert format_sizes(tuple(range(100))) == ""
    assert format_sizes((4,) * 100) == "4x100"


SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=6).map(tuple)


@given(SHAPES, SHAPES)
def test_shapes_are_the_same_text_only_if_they_are_the_same(one, other):
    assert (shapes_text(one) == shapes_text(other)) == (one == other)


def test_a_fingerprint_has_room_for_the_longest():
    shapes = shapes_text([[10**9] * 20] * 1000)
    source = source_text("x" * 5000 + ".py:12345")
    assert source.endswith(".py:12345")
    ranks = tuple(range(0, 120, 2))
    sizes = (12345678, 87654321) * 7
    longest = Fingerprint("all_to_all_single", "g" * 64, ranks, 10**6, 0, 1, 10**9, 1, "PREMUL_SUM", "float32", shapes)
    longest = longest._replace(sends=sizes, receives=sizes, source=source)
    assert len(longest.encode()) <= RECORD


@pytest.mark.parametrize(
    ("fingerprint", "text"),
    [
        (Fingerprint("barrier", "0", (0, 1), 3, 0), "barrier #3"),
        (
            Fingerprint("all_reduce", "0", (0, 1), 1, 0, reduction="MAX", dtype="float64", shapes="[2, 3] + []"),
            "all_reduce #1 float64[2, 3] + [] (MAX)",
        ),
        (
            Fingerprint("recv", "2", (0, 1, 4), 3, 0, peer=4, tag=7, source="t.py:1", default=False),
            "recv #3 from rank 4 with tag 7 in group '2' of ranks 0, 1, 4 at t.py:1",
        ),
        (Fingerprint("recv", "0", (0, 1), 1, 0, peer=ANY_RANK), "recv #1 from any rank"),
        (Fingerprint("broadcast", "0", (0, 1), 1, 0, root=1), "broadcast #1 with root 1"),
    ],
)
def test_a_fingerprint_in_words(fingerprint, text):
    assert str(fingerprint) == text


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("bool", 1), ("float8_e4m3fn", 1)])
def test_bytes(dtype, size):
    assert Fingerprint("all_reduce", "0", (0, 1), 1, 0, dtype=dtype, elements=5).bytes == 5 * size


def test_fingerprints_of_a_rank_are_decoded_on_use_and_survive_pickling():
    one = Fingerprint("barrier", "0", (0, 1), 1, 0)
    found = Fingerprints((one.encode(), b"nonsense", one.encode()), rank=1)
    assert tuple(pickle.loads(pickle.dumps(found))) == (one._replace(rank=1),) * 2  # noqa: S301
