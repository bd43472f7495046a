"""Run pytest tests on N ranks of a real torch process group.

Importing this package does not import torch: every pytest run on the machine loads the plugin, also a run without
distributed tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if pytest.version_tuple < (9, 1):  # before anything is imported that older releases lack
    raise pytest.UsageError(
        f"pytest-ddp needs pytest 9.1 or newer, but pytest {pytest.__version__} is installed: pip install 'pytest>=9.1'"
    )

from pytest_ddp.context import DDPContext
from pytest_ddp.errors import (
    BlocksInsideBackward,
    CollectiveMismatch,
    LeakWarning,
    PytestDDPError,
    SharedGlobalWarning,
    UsageError,
)
from pytest_ddp.marker import distributed
from pytest_ddp.outcomes.failure import RankFailure
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.planning.world import World

if TYPE_CHECKING:
    from pytest_ddp.remote_calls.calls import RankCaller
    from pytest_ddp.remote_calls.objects import Held

__all__ = [
    "BlocksInsideBackward",
    "CollectiveMismatch",
    "DDPContext",
    "Deadlocked",
    "Died",
    "Held",
    "LeakWarning",
    "Outcome",
    "PytestDDPError",
    "Raised",
    "RankCaller",
    "RankFailure",
    "Returned",
    "SharedGlobalWarning",
    "Skipped",
    "Stopped",
    "TimedOut",
    "UsageError",
    "World",
    "distributed",
]
_LAZY = {"RankCaller": "pytest_ddp.remote_calls.calls", "Held": "pytest_ddp.remote_calls.objects"}


def __getattr__(name: str) -> Any:
    """Import the types of `ddp_ranks` when they are first used: they import the pool of ranks."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
