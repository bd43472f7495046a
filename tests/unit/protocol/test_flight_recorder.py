"""The board: what one rank posts, another reads, whole and in order, and nothing of another group's."""

import os
from collections.abc import Iterator

import pytest
from pytest_ddp.observed.deadlocks.board import AREA, SLOTS, TEXT, Area, Head, Post, State, key_of, make_room

KEY = key_of("group-1")


@pytest.fixture
def fd(tmp_path) -> Iterator[int]:
    fd = os.open(tmp_path / "board", os.O_RDWR | os.O_CREAT)
    make_room(fd, 3)
    yield fd
    os.close(fd)


def texts(area: Area) -> list[bytes]:
    return [text for _, text in area.new()]


def test_room_is_made_and_never_taken_back(fd):
    assert os.fstat(fd).st_size == 3 * AREA
    make_room(fd, 1)
    assert os.fstat(fd).st_size == 3 * AREA


def test_notices_are_read_once_and_in_order(fd):
    post, area = Post(fd, 1, KEY), Area(fd, 1, KEY)
    assert texts(area) == []
    post.post(b"one")
    post.post(b"two")
    assert list(area.new()) == [(0, b"one"), (1, b"two")]
    assert texts(area) == []
    post.post(b"three")
    assert texts(area) == [b"three"]
    assert not area.missed


def test_ranks_do_not_write_over_one_another(fd):
    for rank in range(3):
        post = Post(fd, rank, KEY)
        for _ in range(SLOTS):
            post.post(bytes([rank]) * TEXT)
    for rank in range(3):
        assert texts(Area(fd, rank, KEY)) == [bytes([rank]) * TEXT] * SLOTS


def test_a_notice_that_equals_ours_can_be_passed_over(fd):
    ours, theirs, area = Post(fd, 0, KEY), Post(fd, 1, KEY), Area(fd, 1, KEY)
    data = ours.post(b"the same")
    assert not area.pass_over(data)
    theirs.post(b"the same")
    assert area.pass_over(data)
    assert texts(area) == []
    data = ours.post(b"something")
    theirs.post(b"anything!")
    assert not area.pass_over(data)
    assert texts(area) == [b"anything!"]


@pytest.mark.parametrize("more", [1, 2, SLOTS, 2 * SLOTS + 5])
def test_what_was_written_over_is_missed_and_the_rest_is_read(fd, more):
    post, area = Post(fd, 0, KEY), Area(fd, 0, KEY)
    for number in range(SLOTS + more):
        post.post(str(number).encode())
    found = list(area.new())
    assert area.missed
    assert found == [(number, str(number).encode()) for number in range(more, SLOTS + more)]
    post.post(b"next")
    assert texts(area) == [b"next"]


def test_the_notices_of_another_group_are_none(fd):
    Post(fd, 0, key_of("group-0")).post(b"old")
    post, area = Post(fd, 0, KEY), Area(fd, 0, KEY)
    assert texts(area) == []
    post.post(b"new")
    assert texts(area) == [b"new"]


def test_half_a_notice_is_none(fd):
    Post(fd, 0, KEY).post(b"a notice")
    at = os.pread(fd, AREA, 0).index(b"a notice") + len("a notice")
    os.pwrite(fd, b"\xff", at)
    assert texts(Area(fd, 0, KEY)) == []


def test_the_head_changes_its_version_with_every_word(fd):
    post, area = Post(fd, 2, KEY), Area(fd, 2, KEY)
    heads = [area.head()]
    for state, waits_in in ((State.WAITS, 3), (State.RUNS, 0), (State.WAITS, 3), (State.MAY_GO_ON, 0)):
        post.tell(state, waits_in)
        heads.append(area.head())
    assert [(head.state, head.waits_in) for head in heads[1:]] == [(1, 3), (0, 0), (1, 3), (2, 0)]
    assert len({head.version for head in heads}) == 5


def test_a_new_process_goes_on_with_the_versions(fd):
    Post(fd, 0, KEY).tell(State.WAITS)
    before = Area(fd, 0, KEY).head().version
    Post(fd, 0, KEY)
    assert Area(fd, 0, KEY).head().version > before


def test_a_rank_of_another_group_and_one_that_never_was_run(fd):
    Post(fd, 0, key_of("group-0")).tell(State.WAITS, 1)
    assert Area(fd, 0, KEY).head().state is State.RUNS
    assert Area(fd, 1, KEY).head() == Head()
    assert Area(fd, 7, KEY).head() == Head()


def test_a_file_that_is_closed_is_no_board(fd, tmp_path):
    own = os.dup(fd)
    post = Post(own, 0, KEY)
    os.close(own)
    post.post(b"lost")
    another = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)  # takes the number
    assert another == own
    post.post(b"lost too")
    assert os.fstat(another).st_size == 0
    os.close(another)
    assert Area(own, 0, KEY).head() == Head()
    assert texts(Area(fd, 0, KEY)) == []


def test_a_rank_that_writes_nonsense_for_ever_does_not_hold_up_its_reader(fd, monkeypatch):
    area = Area(fd, 0, KEY)
    monkeypatch.setattr(area, "_read", lambda index: (index + 2 * SLOTS, b"nonsense"))
    assert texts(area) == []
    assert area.missed
