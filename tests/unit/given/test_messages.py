"""What a rank tells about an example survives the trip; what ranks said is passed on once."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.given.dispatch import notes_of
from pytest_ddp.given.messages import Told

TOLD = st.builds(
    Told,
    report=st.binary(),
    rejected=st.none() | st.text(),
    origin=st.text(),
    kind=st.text(),
    notes=st.lists(st.text(), max_size=3),
    events=st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False), max_size=3),
    targets=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)


@given(told=TOLD)
def test_an_account_survives_the_trip(told):
    assert Told.decode(told.encode()) == told


def test_nothing_is_told_in_no_bytes():
    assert Told.decode(b"") == Told()


def test_notes_carry_their_rank_unless_all_say_the_same():
    told = {0: Told(notes=["same", "a"]), 1: Told(notes=["same", "b", "more"])}
    assert list(notes_of(told)) == ["same", "rank 0: a", "rank 1: b", "rank 1: more"]
