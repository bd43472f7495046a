"""Observed collectives: a process group in Python that records every operation and delegates it to the real group.

`observe=True` makes the default group of a test, and every group made from it, an `ObservedGroup`. The record is
`ddp.collectives` in a distributed test, and `collectives()` anywhere on an observed rank.
"""

from typing import TYPE_CHECKING

from pytest_ddp.observed.events import (
    BackwardBegan,
    BackwardReturned,
    CollectiveCompleted,
    CollectiveLaunched,
    CollectiveWaited,
    Entry,
    Event,
    GradientReady,
    Moment,
)
from pytest_ddp.observed.gates.schedule import Delay, HoldUntilBackward, InOrder, Schedule, Shuffled, Spoiled
from pytest_ddp.observed.inspection.chrome_trace import merge_traces
from pytest_ddp.observed.inspection.overlap import BackwardOverlap, Overlap
from pytest_ddp.observed.recording import current

if TYPE_CHECKING:
    from pytest_ddp.observed.inspection.collectives import Collectives

__all__ = [
    "BackwardBegan",
    "BackwardOverlap",
    "BackwardReturned",
    "CollectiveCompleted",
    "CollectiveLaunched",
    "CollectiveWaited",
    "Delay",
    "Entry",
    "Event",
    "GradientReady",
    "HoldUntilBackward",
    "InOrder",
    "Moment",
    "Overlap",
    "Schedule",
    "Shuffled",
    "Spoiled",
    "collectives",
    "merge_traces",
]


def collectives() -> "Collectives":
    """Return this rank's record of the running test; raise UsageError if the test is not observed."""
    from pytest_ddp.observed.inspection.collectives import Collectives  # noqa: PLC0415  imports torch

    return Collectives(current.record())
