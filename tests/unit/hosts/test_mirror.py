"""The controller's copies of a remote rank's files are equal to the files."""

import os
from datetime import timedelta

import pytest

from pytest_ddp.hosts.messages import Update, decode, encode
from pytest_ddp.hosts.mirror import Changes, Copies
from pytest_ddp.protocol.flight_recorder import SLOTS, Reader, Recorder, key_of, make_room
from pytest_ddp.protocol.messages import Decoder
from pytest_ddp.protocol.shared_files import OUTPUT_LIMIT, OutputFile, SharedFiles, memory_file

RANK = 1


class Pair:
    """A rank's files on its host, and their copies."""

    def __init__(self) -> None:
        self.recorders = memory_file(), memory_file()
        for recorder in self.recorders:
            make_room(recorder.fileno(), RANK + 1)
        self.host, self.here = (SharedFiles.make(RANK, recorder) for recorder in self.recorders)
        self.changes, self.copies = Changes(5, self.host), Copies.of(self.here)
        self.recorder = Recorder(self.host.recorder.fileno(), RANK)

    def update(self) -> Update | None:
        update = self.changes.take()
        if update is not None:
            [sent] = Decoder(decode=decode).feed(encode(update))
            self.copies.apply(sent)
        return update

    def close(self) -> None:
        self.copies.close()
        for shared in (self.host, self.here):
            shared.close()
        for recorder in self.recorders:
            recorder.close()


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def test_nothing_is_sent_if_nothing_has_changed(pair):
    assert pair.update() is not None  # the head of the new recorder
    assert pair.update() is None


def test_output_and_stacks_are_copied_in_pieces(pair):
    for text in ("first\n", "second\n"):
        pair.host.output.write(text.encode())
        pair.host.stacks.write(text.upper().encode())
        pair.update()
    assert OutputFile(pair.here.output).text == "first\nsecond\n"
    assert OutputFile(pair.here.stacks).text == "FIRST\nSECOND\n"


def test_of_a_long_output_the_middle_is_left_out_as_in_a_report(pair):
    pair.host.output.write(b"".join(b"line %d\n" % number for number in range(50_000)))
    update = pair.update()
    assert update is not None
    assert len(update.body) < 2 * OUTPUT_LIMIT
    assert OutputFile(pair.here.output).text == OutputFile(pair.host.output).text


def test_output_after_the_controller_has_cleared_its_copy_is_that_of_the_next_run(pair):
    pair.host.output.write(b"first")
    pair.update()
    OutputFile(pair.here.output).clear()
    pair.host.output.write(b"second")
    pair.update()
    assert OutputFile(pair.here.output).text == "second"


@pytest.mark.parametrize("count", [1, 3, SLOTS - 1, SLOTS + 5])
def test_the_flight_recorder_is_copied(pair, count):
    pair.recorder.begin_group(key_of("g"), timedelta(seconds=1))
    for part in (range(count), range(count, count + 2)):
        for number in part:
            pair.recorder.record(b"operation %d" % number)
        pair.update()
    theirs, ours = (Reader(file.fileno(), RANK, key_of("g")) for file in pair.recorders)
    assert ours.head() == theirs.head()
    assert list(ours.new()) == list(theirs.new())


def test_a_new_group_begins_anew(pair):
    for group in ("g", "h"):
        pair.recorder.begin_group(key_of(group), timedelta(seconds=1))
        pair.recorder.record(group.encode())
        pair.update()
    assert list(Reader(pair.here.recorder.fileno(), RANK, key_of("h")).new()) == [(0, b"h")]


def test_the_reason_for_which_a_rank_left_is_copied(pair):
    pair.recorder.note("lost its way")
    pair.update()
    assert Reader(pair.here.recorder.fileno(), RANK).exit_note == "lost its way"
    pair.copies.note("its node is gone")
    assert Reader(pair.here.recorder.fileno(), RANK).exit_note == "its node is gone"


def test_a_rank_that_has_been_replaced_writes_no_more_to_the_flight_recorder(pair):
    pair.update()
    pair.copies.replaced = True
    pair.recorder.note("too late")
    pair.update()
    assert not Reader(pair.here.recorder.fileno(), RANK).exit_note


def test_the_copies_outlive_the_files_of_the_pool(pair):
    pair.here.output.close()
    pair.host.output.write(b"late")
    pair.update()
    assert os.fstat(pair.copies.output).st_size == 4
