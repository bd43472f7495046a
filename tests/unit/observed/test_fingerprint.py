"""What ranks post for one another survives the trip, and nothing else passes for it."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.observed.deadlocks.board import TEXT
from pytest_ddp.observed.fingerprint import ANYONE, Fingerprint, parts_of, parts_text, shapes_text, source_text
from pytest_ddp.planning.world import format_ranks, parse_ranks

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=20)
RANKS = st.lists(st.integers(0, 99), unique=True, max_size=12).map(tuple)
NUMBERS = st.integers(1, 10**9)
PARTS = st.lists(st.integers(0, 10**6), max_size=8).map(tuple)
NOTICES = st.builds(
    Fingerprint,
    op=WORDS,
    group=WORDS,
    ranks=RANKS,
    number=NUMBERS,
    rank=st.integers(0, 99),
    peer=st.none() | st.integers(ANYONE, 99),
    tag=st.integers(0, 2**31),
    root=st.none() | st.integers(0, 99),
    reduction=WORDS,
    dtype=WORDS,
    shapes=WORDS,
    elements=NUMBERS,
    given=PARTS,
    taken=PARTS,
    source=WORDS,
    asynchronous=st.booleans(),
    loose=st.booleans(),
    default=st.booleans(),
)


@given(NOTICES)
def test_notices_survive_the_trip(notice):
    assert Fingerprint.decode(notice.encode(), notice.rank) == notice


@given(NOTICES, st.integers(0, 99))
def test_ranks_that_do_the_same_post_the_same(notice, other):
    assert notice._replace(rank=other).encode() == notice.encode()


@given(st.binary(max_size=200))
def test_anything_else_is_no_notice(data):
    assert Fingerprint.decode(data, 0) is None


def test_a_notice_with_numbers_that_are_none_is_no_notice():
    data = Fingerprint("barrier", "0", (0, 1), 1, 0).encode()
    assert Fingerprint.decode(data.replace(b"0-1", b"0-x"), 0) is None


@given(RANKS)
def test_ranks_as_text(ranks):
    assert parse_ranks(format_ranks(ranks)) == ranks


def test_ranks_in_a_row_are_short():
    assert format_ranks((0, 1, 2, 3, 6, 5)) == "0-3,6,5"


@given(PARTS)
def test_parts_as_text(parts):
    assert parts_of(parts_text(parts)) == parts


def test_parts_that_are_too_many_are_left_out():
    assert parts_text(tuple(range(100))) == ""
    assert parts_text((4,) * 100) == "4x100"


SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=6).map(tuple)


@given(SHAPES, SHAPES)
def test_shapes_are_the_same_text_only_if_they_are_the_same(one, other):
    assert (shapes_text(one) == shapes_text(other)) == (one == other)


def test_a_notice_has_room_for_the_longest():
    shapes = shapes_text([[10**9] * 20] * 1000)
    source = source_text("x" * 5000 + ".py:12345")
    assert source.endswith(".py:12345")
    ranks = tuple(range(0, 120, 2))
    parts = (12345678, 87654321) * 7
    longest = Fingerprint("all_to_all_single", "g" * 64, ranks, 10**6, 0, 1, 10**9, 1, "PREMUL_SUM", "float32", shapes)
    longest = longest._replace(given=parts, taken=parts, source=source)
    assert len(longest.encode()) <= TEXT
