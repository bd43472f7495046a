"""Observed collectives: a process group in Python that delegates to the real one and sees everything.

`observe=True` puts an `ObservedGroup` under the default group of a test's ranks and under every group made from it.
What a rank does with them goes into its record, which `ddp.collectives` shows in a distributed test and
`collectives()` anywhere on an observed rank.
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
from pytest_ddp.observed.gates.schedule import Delay, HoldUntilBackward, InOrder, Schedule, Shuffled
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
    "collectives",
    "merge_traces",
]


def collectives() -> "Collectives":
    """Return this rank's record of the test at hand; raise UsageError when the test is not observed."""
    from pytest_ddp.observed.inspection.collectives import Collectives  # noqa: PLC0415  imports torch: not before it must

    return Collectives(current.record())
