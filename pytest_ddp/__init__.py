"""Run pytest tests on N ranks of a real torch process group.

Importing this package imports neither torch nor pytest's internals: the plugin is loaded by every pytest run on the
machine, also by those that have no distributed test.
"""

from typing import TYPE_CHECKING, Any

from pytest_ddp.context import DDPContext
from pytest_ddp.errors import BlocksInsideBackward, CollectiveMismatch, LeakWarning, PytestDDPError, UsageError
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
    "Skipped",
    "Stopped",
    "TimedOut",
    "UsageError",
    "World",
    "distributed",
]


def __getattr__(name: str) -> Any:
    """Import what belongs to `ddp_ranks` when it is asked for: it brings the machinery of ranks."""
    if name == "RankCaller":
        from pytest_ddp.remote_calls.calls import RankCaller  # noqa: PLC0415  see above

        return RankCaller
    if name == "Held":
        from pytest_ddp.remote_calls.objects import Held  # noqa: PLC0415  see above

        return Held
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
