"""Messages survive the trip, in pieces of any size; anything else is refused."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.errors import ProtocolError
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.messages import (
    Answer,
    Close,
    Debugging,
    Decoder,
    Disconnect,
    GetTimeline,
    Inbox,
    Launch,
    Run,
    encode,
)

MESSAGES = st.one_of(
    st.builds(
        Launch,
        rank=st.integers(0, 9),
        sys_path=st.lists(st.text(), max_size=3),
        cwd=st.text(),
        env=st.dictionaries(st.text(), st.text(), max_size=3),
        store=st.just(["host", 1]),
        body=st.binary(),
    ),
    st.builds(
        Run,
        number=st.integers(),
        target=st.text(),
        group=st.text(),
        world=st.builds(
            World, st.integers(1, 9), st.text(), st.text(), st.lists(st.integers(0, 9)).map(tuple), st.booleans()
        ),
        group_timeout=st.floats(allow_nan=False),
        body=st.binary(),
    ),
    st.builds(Debugging, st.booleans()),
    st.builds(Answer, number=st.integers(), outcome=st.text(), message=st.text(), body=st.binary()),
    st.builds(GetTimeline, st.integers()),
    st.just(Disconnect()),
    st.just(Close()),
)


@given(messages=st.lists(MESSAGES, max_size=4), piece=st.integers(1, 50))
def test_messages_survive_the_trip_in_pieces_of_any_size(messages, piece):
    wire = b"".join(encode(message) for message in messages)
    decoder = Decoder()
    found = [m for start in range(0, len(wire), piece) for m in decoder.feed(wire[start : start + piece])]
    assert found == messages


@given(MESSAGES, MESSAGES)
def test_a_rank_receives_what_the_controller_sends(first, second):
    controller, rank = socket.socketpair()
    with controller, rank:
        controller.sendall(encode(first) + encode(second))
        inbox = Inbox(rank)
        assert [inbox.receive(), inbox.receive()] == [first, second]


def test_an_inbox_returns_none_once_the_controller_is_gone():
    controller, rank = socket.socketpair()
    controller.close()
    with rank:
        assert Inbox(rank).receive() is None


@pytest.mark.parametrize(
    "head", [b"{", b"[]", b'["Unknown", {}]', b'["Answer", {"surprise": 1}]', b'["Close", 3]', b"7"]
)
def test_bytes_that_are_no_message_are_refused(head):
    with pytest.raises(ProtocolError, match="not a message of pytest-ddp"):
        list(Decoder().feed(struct.pack(">IQ", len(head), 0) + head))


def test_lengths_over_the_limit_are_refused_at_once():
    with pytest.raises(ProtocolError, match=r"announced 10 \+ 2000 bytes; at most \d+ \+ 1000 are allowed"):
        list(Decoder(limit=1000).feed(struct.pack(">IQ", 10, 2000)))
