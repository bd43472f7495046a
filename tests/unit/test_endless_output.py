"""What a rank prints is bounded in reports and on disk: the beginning and the end are kept."""

import tempfile
from types import SimpleNamespace

import pytest

from pytest_ddp.launcher import _append_only, memory_file
from pytest_ddp.member import DISK_LIMIT, OUTPUT_LIMIT, Member

LINE = b"printed and printed\n"


@pytest.fixture
def member():
    with tempfile.TemporaryFile(buffering=0) as output, memory_file() as box:
        yield Member(0, 1, SimpleNamespace(output=_append_only(output), box=box))


def prints(member, *pieces):
    for piece in pieces:
        member.shared.output.write(piece)


def test_what_is_short_is_whole(member):
    prints(member, b"x" * OUTPUT_LIMIT)
    member.trim_output()
    assert member.output == "x" * OUTPUT_LIMIT


@pytest.mark.parametrize("times", [1, 3])
def test_an_output_without_end_leaves_the_disk_alone(member, times):
    prints(member, b"first words\n")
    for _ in range(times):
        prints(member, LINE * (DISK_LIMIT // len(LINE) + 1), b"last words\n")
        member.trim_output()
        assert member.shared.output.seek(0, 2) == OUTPUT_LIMIT
    total = len(b"first words\n") + times * (len(LINE) * (DISK_LIMIT // len(LINE) + 1) + len(b"last words\n"))
    assert member.output.startswith("first words\nprinted and printed\n")
    assert member.output.endswith("printed and printed\nlast words\n")
    assert f"\n... {total - OUTPUT_LIMIT} bytes left out ...\n" in member.output


def test_the_next_run_starts_with_nothing_left_out(member):
    prints(member, LINE * (DISK_LIMIT // len(LINE) + 1))
    member.trim_output()
    member.start_over()
    prints(member, b"next\n")
    assert member.output == "next\n"
