"""Slots that processes share: one process holds each, every request is served, a process that dies frees its slots."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddp.controller.xdist import Slots

SLOTS = 4
TURNS = 25
WORKER = """
import os, sys
from pathlib import Path
sys.path[:] = {path!r}
from pytest_ddp.controller.xdist import Slots
slots = Slots(Path({folder!r}), "gpu", 4)
log = os.open({folder!r} + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
"""
TAKES_TURNS = """
for turn in range({turns}):
    with slots.take((1, 2, 4)[({number} + turn) % 3]) as taken:
        os.write(log, f"+ {{taken}}\\n".encode())
        os.write(log, f"- {{taken}}\\n".encode())
"""
HOLDS = """
with slots.take({number}) as taken:
    print(taken, flush=True)
    sys.stdin.read()
"""


def worker(folder: Path, work: str, number: int) -> "subprocess.Popen[str]":
    code = WORKER.format(path=sys.path, folder=str(folder)) + work.format(turns=TURNS, number=number)
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_eight_workers_share_four_slots(tmp_path):
    """Every worker takes one, two and all slots in turn, and writes to one log what it holds."""
    workers = [worker(tmp_path, TAKES_TURNS, number) for number in range(8)]
    for process in workers:
        process.communicate()
        assert process.returncode == 0, "a worker's own errors are on stderr"
    held: set[int] = set()
    entries = (tmp_path / "log").read_text().splitlines()
    for entry in entries:
        slots = set(map(int, entry[3:-1].split(",")))
        assert not slots & held if entry[0] == "+" else slots <= held, entry
        held ^= slots
    assert not held
    assert len(entries) == 8 * TURNS * 2


def test_a_killed_holder_frees_its_slots(tmp_path):
    slots = Slots(tmp_path, "gpu", SLOTS)
    with worker(tmp_path, HOLDS, 3) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "[0, 1, 2]\n"
        with slots.take(1) as taken:
            assert taken == [3]
        holder.kill()
        with slots.take(SLOTS) as taken:
            assert taken == [0, 1, 2, 3]
    slots.close()


def test_the_slots_of_the_last_time_are_taken_again(tmp_path):
    mine, others = Slots(tmp_path, "gpu", SLOTS), Slots(tmp_path, "gpu", SLOTS)
    with others.take(1), mine.take(2) as taken:
        assert taken == [1, 2]
    with mine.take(2) as taken:
        assert taken == [1, 2]
    with mine.take(3) as taken:
        assert taken == [0, 1, 2]
    mine.close()
    others.close()


def test_an_error_while_slots_are_held_frees_them(tmp_path):
    mine, others = Slots(tmp_path, "gpu", SLOTS), Slots(tmp_path, "gpu", SLOTS)
    with pytest.raises(KeyError), mine.take(4):
        raise KeyError
    with others.take(4) as taken:
        assert taken == [0, 1, 2, 3]
    mine.close()
    others.close()


def test_more_slots_than_exist_are_refused(tmp_path):
    slots = Slots(tmp_path, "gpu", SLOTS)
    with pytest.raises(ValueError, match="5 slots wanted, there are 4"), slots.take(5):
        pass
    slots.close()


def test_closing_frees_slots_that_are_still_held(tmp_path):
    mine, others = Slots(tmp_path, "gpu", SLOTS), Slots(tmp_path, "gpu", SLOTS)
    with mine.take(2):
        mine.close()
        with others.take(SLOTS) as taken:
            assert taken == [0, 1, 2, 3]
    others.close()
