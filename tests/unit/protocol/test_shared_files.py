"""Reports and the disk keep the beginning and the end of a very long output."""

import os
import sys

import pytest

from pytest_ddp.protocol import shared_files
from pytest_ddp.protocol.shared_files import DISK_LIMIT, OUTPUT_LIMIT, OutputFile, _append_only, memory_file

LINE = b"printed and printed\n"


@pytest.fixture(params=["with holes", "without holes"])
def output(request, monkeypatch):
    if request.param == "without holes":
        monkeypatch.setattr(shared_files, "free_disk", lambda *_: False)
    elif sys.platform != "linux":
        pytest.skip("files have no holes here")
    with memory_file() as file:
        yield OutputFile(_append_only(file))


def prints(output, *pieces):
    for piece in pieces:
        output.file.write(piece)


def on_disk(output):
    return os.fstat(output.file.fileno()).st_blocks * 512


def test_a_short_output_is_kept_whole(output):
    prints(output, b"x" * OUTPUT_LIMIT)
    output.trim()
    assert output.text == "x" * OUTPUT_LIMIT


@pytest.mark.parametrize("times", [1, 3])
def test_a_very_long_output_does_not_fill_the_disk(output, times):
    prints(output, b"first words\n")
    for _ in range(times):
        prints(output, LINE * (DISK_LIMIT // len(LINE) + 1), b"last words\n")
        output.trim()
        assert on_disk(output) < 2 * OUTPUT_LIMIT
    total = len(b"first words\n") + times * (len(LINE) * (DISK_LIMIT // len(LINE) + 1) + len(b"last words\n"))
    assert output.text.startswith("first words\nprinted and printed\n")
    assert output.text.endswith("printed and printed\nlast words\n")
    assert f"\n... {total - OUTPUT_LIMIT} bytes left out ...\n" in output.text


def test_the_next_run_starts_with_an_empty_output(output):
    prints(output, LINE * (DISK_LIMIT // len(LINE) + 1))
    output.trim()
    output.clear()
    prints(output, b"next\n")
    assert output.text == "next\n"
    output.trim()
    assert output.text == "next\n"


def test_an_output_that_the_rank_truncates_is_trimmed_again(output):
    prints(output, LINE * (5 * DISK_LIMIT // len(LINE)))
    output.trim()
    os.ftruncate(output.file.fileno(), 0)
    output.trim()
    prints(output, LINE * (DISK_LIMIT // len(LINE) + 1))
    output.trim()
    assert on_disk(output) < 2 * OUTPUT_LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="files have no holes here")
def test_output_that_is_printed_during_the_trimming_is_kept(monkeypatch):
    make_hole = shared_files.free_disk

    def print_meanwhile(*place):
        prints(output, b"meanwhile\n")
        return make_hole(*place)

    monkeypatch.setattr(shared_files, "free_disk", print_meanwhile)
    with memory_file() as file:
        output = OutputFile(_append_only(file))
        prints(output, b"x" * (DISK_LIMIT + 1))
        output.trim()
        assert output.text.endswith("xxxmeanwhile\n")
        assert f"\n... {DISK_LIMIT + 1 + len('meanwhile.') - OUTPUT_LIMIT} bytes left out ...\n" in output.text


@pytest.mark.skipif(sys.platform != "linux", reason="files have no holes here")
def testfree_disk_returns_false_for_a_file_that_cannot_have_holes():
    reader, writer = os.pipe()
    assert not shared_files.free_disk(writer, 0, OUTPUT_LIMIT)
    os.close(reader)
    os.close(writer)
