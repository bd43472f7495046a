"""The flight recorder: what one rank records, another reads, whole and in order, and nothing of another group's."""

import _thread
import os
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from pytest_ddp.protocol import flight_recorder
from pytest_ddp.protocol.flight_recorder import (
    AREA,
    LATEST,
    RECORD,
    SLOTS,
    Head,
    Reader,
    Recorder,
    State,
    key_of,
    make_room,
    own_thread,
)

KEY = key_of("group-1")
PATIENCE = timedelta(seconds=60)


@pytest.fixture
def fd(tmp_path) -> Iterator[int]:
    fd = os.open(tmp_path / "recorder", os.O_RDWR | os.O_CREAT)
    make_room(fd, 3)
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Let no thread count that was there before, such as those of xdist."""
    monkeypatch.setattr(flight_recorder, "_own_threads", set(range(-_thread._count(), 0)))


def recorder_of(fd: int, rank: int, key: int = KEY) -> Recorder:
    recorder = Recorder(fd, rank)
    recorder.begin_group(key, PATIENCE)
    return recorder


def records(reader: Reader) -> list[bytes]:
    return [record for _, record in reader.new()]


def test_room_is_made_and_never_taken_back(fd):
    assert os.fstat(fd).st_size == 3 * AREA
    make_room(fd, 1)
    assert os.fstat(fd).st_size == 3 * AREA


def test_records_are_read_once_and_in_order(fd):
    recorder, reader = recorder_of(fd, 1), Reader(fd, 1, KEY)
    assert records(reader) == []
    recorder.record(b"one")
    recorder.record(b"two")
    assert list(reader.new()) == [(0, b"one"), (1, b"two")]
    assert records(reader) == []
    recorder.record(b"three")
    assert records(reader) == [b"three"]
    assert not reader.missed


def test_ranks_do_not_write_over_one_another(fd):
    for rank in range(3):
        recorder = recorder_of(fd, rank)
        for _ in range(SLOTS):
            recorder.record(bytes([rank]) * RECORD)
    for rank in range(3):
        assert records(Reader(fd, rank, KEY)) == [bytes([rank]) * RECORD] * SLOTS


def test_a_record_that_equals_ours_can_be_passed_over(fd):
    ours, theirs, reader = recorder_of(fd, 0), recorder_of(fd, 1), Reader(fd, 1, KEY)
    data = ours.record(b"the same")
    assert not reader.pass_over(data)
    theirs.record(b"the same")
    assert reader.pass_over(data)
    assert records(reader) == []
    data = ours.record(b"something")
    theirs.record(b"anything!")
    assert not reader.pass_over(data)
    assert records(reader) == [b"anything!"]


@pytest.mark.parametrize("more", [1, 2, SLOTS, 2 * SLOTS + 5])
def test_what_was_overwritten_is_missed_and_the_rest_is_read(fd, more):
    recorder, reader = recorder_of(fd, 0), Reader(fd, 0, KEY)
    for number in range(SLOTS + more):
        recorder.record(str(number).encode())
    found = list(reader.new())
    assert reader.missed
    assert found == [(number, str(number).encode()) for number in range(more, SLOTS + more)]
    recorder.record(b"next")
    assert records(reader) == [b"next"]


def test_the_latest_records_are_those_of_the_latest_run(fd):
    recorder, reader = recorder_of(fd, 2), Reader(fd, 2)
    recorder.record(b"of an earlier run")
    recorder.begin_run()
    assert reader.latest() == ()
    for number in range(LATEST + 3):
        recorder.record(str(number).encode())
    assert reader.latest() == tuple(str(number).encode() for number in range(3, LATEST + 3))


def test_the_records_of_another_group_are_none(fd):
    recorder_of(fd, 0, key_of("group-0")).record(b"old")
    recorder, reader = recorder_of(fd, 0), Reader(fd, 0, KEY)
    assert records(reader) == []
    recorder.record(b"new")
    assert records(reader) == [b"new"]


def test_half_a_record_is_none(fd):
    recorder_of(fd, 0).record(b"a record")
    at = os.pread(fd, AREA, 0).index(b"a record") + len("a record")
    os.pwrite(fd, b"\xff", at)
    assert records(Reader(fd, 0, KEY)) == []


def test_a_record_whose_middle_is_still_that_of_an_older_one_is_none(fd):
    recorder_of(fd, 0).record(b"all_gather 66x2;66x2 loss.py")
    recorder_of(fd, 0).record(b"all_gather 65x2;65x2 loss.py")
    at = os.pread(fd, AREA, 0).index(b"65x2;65x2")
    assert records(Reader(fd, 0, KEY)) == [b"all_gather 65x2;65x2 loss.py"]
    os.pwrite(fd, b"65x2;66x2", at)
    assert records(Reader(fd, 0, KEY)) == []


def test_a_record_that_is_too_long_is_cut(fd):
    recorder_of(fd, 0).record(bytes(2 * RECORD))
    assert records(Reader(fd, 0, KEY)) == [bytes(RECORD)]


def test_the_head_changes_its_version_with_every_state(fd):
    recorder, reader = recorder_of(fd, 2), Reader(fd, 2, KEY)
    heads = [reader.head()]
    for mark in (lambda: recorder.mark_waiting(3, PATIENCE), recorder.mark_running, recorder.mark_idle):
        mark()
        heads.append(reader.head())
    recorder.record(b"one")
    heads.append(reader.head())
    assert [(head.state, head.waits_in) for head in heads[1:]] == [(1, 3), (0, 0), (2, 0), (0, 0)]
    assert len({head.version for head in heads}) == 5


def test_a_wait_with_a_shorter_timeout_is_none(fd):
    recorder = recorder_of(fd, 0)
    recorder.mark_waiting(0, PATIENCE - timedelta(seconds=1))
    assert Reader(fd, 0).head().state is State.RUNS


def test_a_rank_with_another_thread_runs_unless_that_is_the_harness_s(fd):
    recorder, begun, over = recorder_of(fd, 0), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait()

    def wait_as_harness() -> None:
        with own_thread():
            wait()

    def is_idle_beside(target) -> bool:
        begun.clear()
        over.clear()
        thread = threading.Thread(target=target)
        thread.start()
        begun.wait()
        recorder.mark_idle()
        over.set()
        thread.join()
        return Reader(fd, 0).head().state is State.IDLE

    assert is_idle_beside(wait_as_harness)
    assert not is_idle_beside(wait)


def test_a_new_process_goes_on_with_the_versions_and_has_no_note(fd):
    old = recorder_of(fd, 0)
    old.note("left")
    reader = Reader(fd, 0, KEY)
    assert reader.exit_note == "left"
    before = reader.head().version
    recorder_of(fd, 0)
    assert reader.head().version > before
    assert reader.exit_note == ""


def test_a_rank_that_never_was_runs(fd):
    assert Reader(fd, 1, KEY).head() == Head()
    assert Reader(fd, 7, KEY).head() == Head()


def test_a_file_that_is_closed_can_be_written_but_not_read(fd, tmp_path):
    own = os.dup(fd)
    recorder = recorder_of(own, 0)
    os.close(own)
    recorder.record(b"kept")
    another = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)  # takes the number
    assert another == own
    recorder.record(b"kept too")
    assert os.fstat(another).st_size == 0
    os.close(another)
    assert Reader(own, 0, KEY).head() == Head()
    assert records(Reader(fd, 0, KEY)) == [b"kept", b"kept too"]


def test_a_forked_child_writes_to_no_file(fd):
    recorder = recorder_of(fd, 0)
    pid = os.fork()
    if pid == 0:
        recorder.record(b"child")
        os._exit(0)
    os.waitpid(pid, 0)
    recorder.record(b"parent")
    assert records(Reader(fd, 0, KEY)) == [b"parent"]


def test_a_rank_that_writes_nonsense_for_ever_does_not_hold_up_its_reader(fd, monkeypatch):
    reader = Reader(fd, 0, KEY)
    monkeypatch.setattr(reader, "_read", lambda index: (index + 2 * SLOTS, b"nonsense"))
    assert records(reader) == []
    assert reader.missed
