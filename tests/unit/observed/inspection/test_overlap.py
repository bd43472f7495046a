"""The verdict on a backward pass, from a record written by hand."""

from dataclasses import replace

import pytest

from pytest_ddp.observed import (
    BackwardBegan,
    BackwardReturned,
    CollectiveWaited,
    Entry,
    GradientReady,
    Moment,
    Overlap,
)
from pytest_ddp.observed.inspection.overlap import overlap

# Two gradients, at 10 and 20, of a backward from 1 to 30; then one more from 50 to 60 with its gradient at 55.
EVENTS = [
    BackwardBegan(1, 1, "train.py:1", 2),
    GradientReady(10, 1, "a"),
    GradientReady(20, 1, "b"),
    BackwardReturned(30, 1),
    BackwardBegan(50, 2, "train.py:2", 1),
    GradientReady(55, 2, "a"),
    BackwardReturned(60, 2),
]


def moment(time: int) -> Moment:
    if time < 30:
        return Moment(time, 1, (time > 10) + (time > 20), 2)
    return Moment(time, 2, int(time > 55), 1) if 50 < time < 60 else Moment(time)


def entry(launched: int, waited: int | None = None, number: int = 1, **words) -> Entry:
    plain = Entry("all_reduce", "0", (0, 1), bytes=4, number=number, asynchronous=True, line=f"hook.py:{launched}")
    return replace(plain, launched=moment(launched), waited=moment(waited) if waited else None, **words)


BLOCKING = {"asynchronous": False}


@pytest.mark.parametrize(
    ("entries", "verdict", "at"),
    [
        ([entry(11, 31)], Overlap.OVERLAPPED, "hook.py:11"),
        ([entry(11)], Overlap.OVERLAPPED, "hook.py:11"),
        ([entry(11, 21)], Overlap.OVERLAPPED, "hook.py:11"),
        ([entry(21, 31), entry(12, 32, 2)], Overlap.OVERLAPPED, "hook.py:12"),
        ([entry(11, 12)], Overlap.BLOCKS_INSIDE_BACKWARD, "waits.py:1"),
        ([entry(11, 31), entry(12, 13, 2)], Overlap.BLOCKS_INSIDE_BACKWARD, "waits.py:2"),
        ([entry(11, 14), entry(12, 13, 2)], Overlap.BLOCKS_INSIDE_BACKWARD, "waits.py:2"),
        ([entry(11, **BLOCKING, number=3)], Overlap.BLOCKS_INSIDE_BACKWARD, "hook.py:11"),
        ([entry(21, 22)], Overlap.END_OF_BACKWARD, "hook.py:21"),
        ([entry(21, **BLOCKING)], Overlap.END_OF_BACKWARD, "hook.py:21"),
        ([entry(31, 32), entry(33, 34)], Overlap.AFTER_BACKWARD, "hook.py:31"),
        ([entry(31, bytes=0)], Overlap.NONE, ""),
        ([entry(61, 62)], Overlap.NONE, ""),
        ([], Overlap.NONE, ""),
    ],
)
def test_the_verdict_and_the_line_that_decides(entries, verdict, at):
    events = [
        *EVENTS,
        *(CollectiveWaited(e.waited.time, e.number, f"waits.py:{e.number}") for e in entries if e.waited),
    ]
    events.sort(key=lambda event: event.time)
    first, _ = overlap([replace(e, number=e.number) for e in entries], events)
    assert (first.verdict, first.at, first.backward, first.line) == (verdict, at, 1, "train.py:1")


def test_a_wait_in_the_next_backward_blocks_that_backward():
    found = overlap([entry(11, 52)], EVENTS)
    assert [one.verdict for one in found] == [Overlap.OVERLAPPED, Overlap.BLOCKS_INSIDE_BACKWARD]


def test_waits_in_a_backward_that_raised_block():
    events = [BackwardBegan(1, 1, "train.py:1", 2), GradientReady(10, 1, "a"), BackwardReturned(30, 1)]
    (found,) = overlap([entry(11, 12)], events)
    assert found.verdict is Overlap.BLOCKS_INSIDE_BACKWARD


def test_a_backward_inside_another_is_part_of_it():
    """All gradients of the inner pass are ready, but not those of the outer one."""
    inner = [BackwardBegan(5, 2, "checkpoint.py:1", 1), GradientReady(6, 2, "c"), BackwardReturned(9, 2)]
    events = sorted([*EVENTS[:4], *inner], key=lambda event: event.time)
    launched = replace(entry(7), launched=Moment(7, 2, 1, 1))
    waited = replace(launched, waited=Moment(8, 2, 1, 1))
    assert [one.verdict for one in overlap([launched], events)] == [Overlap.OVERLAPPED]
    assert [one.verdict for one in overlap([waited], events)] == [Overlap.BLOCKS_INSIDE_BACKWARD]


def test_a_record_that_was_cleared_inside_backward():
    (found,) = overlap([entry(21)], EVENTS[2:4])
    assert (found.verdict, found.line) == (Overlap.END_OF_BACKWARD, "")


def test_a_verdict_as_text():
    found = overlap([entry(31, shapes=((2,),), dtype="float32", sequence=4)], EVENTS)
    assert [str(one) for one in found] == [
        "backward 1 (train.py:1): after backward at hook.py:31: all_reduce #4 float32[2] (hook.py:31)",
        "backward 2 (train.py:2): none",
    ]
