"""Run pytest tests on N ranks of a real torch process group.

Importing this package imports neither torch nor pytest's internals: the plugin is loaded by every pytest run on the
machine, also by those that have no distributed test.
"""

from pytest_ddp.context import DDPContext
from pytest_ddp.errors import PytestDDPError, UsageError
from pytest_ddp.failure import RankFailure
from pytest_ddp.marker import distributed
from pytest_ddp.outcome import Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.world import World

__all__ = [
    "DDPContext",
    "Died",
    "Outcome",
    "PytestDDPError",
    "Raised",
    "RankFailure",
    "Returned",
    "Skipped",
    "Stopped",
    "TimedOut",
    "UsageError",
    "World",
    "distributed",
]
