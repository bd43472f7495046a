"""The exit code of a rank is reported even if the launcher learns it late."""

from contextlib import suppress
from dataclasses import dataclass

import psutil

from pytest_ddp.outcomes.outcome import Died
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import EXIT_SECONDS, ForkLauncher
from pytest_ddp.pool.pool import RankPool


@dataclass
class SlowLauncher(ForkLauncher):
    """Returns no exit code to a caller that waits for a short time only."""

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        if seconds >= EXIT_SECONDS:
            return super().exit_code(pid, seconds)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(60)
        return None


def test_a_late_exit_code_is_waited_for():
    launcher = SlowLauncher(("pytest_ddp.observed.recording.process_group",))
    with RankPool(launcher) as pool:
        outcomes = pool.run(World(2), "rank_targets:one_exits", timeout=60)
    launcher.close()
    (died,) = (outcome for outcome in outcomes if isinstance(outcome, Died))
    assert (died.rank, died.exit_code, died.exit_note) == (1, 3, "")
