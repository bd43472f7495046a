"""The warm ranks of a run: one pool per device, started when the first test needs it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import cloudpickle
import pytest

from pytest_ddp.controller.rank_config import session_start
from pytest_ddp.controller.xdist import Leases, shared_folder
from pytest_ddp.planning.plan import Machine
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import GROUP_TIMEOUT_MARGIN
from pytest_ddp.pool.launcher import SpawnLauncher, launcher_for
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import HOST
from pytest_ddp.reporting.run_summary import Summary
from pytest_ddp.settings import Settings


@dataclass
class RankPools:
    """Pools of ranks that each run a pytest session like this one's.

    Attributes:
        config: the run's.
        settings: the run's.
        summary: counts the ranks that are started, and reports what ranks print while they end.
        timeout_margin: seconds by which a process group's own timeout is longer than that of a run.
    """

    config: pytest.Config
    settings: Settings
    summary: Summary
    timeout_margin: float = GROUP_TIMEOUT_MARGIN
    _pools: dict[str, RankPool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leases = Leases(shared_folder(self.config))

    def of(self, device: str) -> RankPool:
        """Return the pool of a device ("cpu" or "cuda"); raise LaunchError if this run's ranks cannot be configured."""
        if device not in self._pools:
            capture = self.config.getoption("capture", "no") != "no"
            body = cloudpickle.dumps(session_start(self.config, self.settings))
            pool = RankPool(launcher_for(device), host=HOST, host_body=body, capture=capture, counts=self.summary.ranks)
            pool.timeout_margin = self.timeout_margin
            self._pools[device] = pool
        return self._pools[device]

    def lease(self, world: World) -> AbstractContextManager[World]:
        """Hold the cores or GPUs that a world needs among the workers of an xdist run; give the world with its GPUs."""
        return self._leases.hold(world, Machine.detect())

    def close(self) -> None:
        """End every rank."""
        for pool in self._pools.values():
            pool.close()
            self.summary.add_exit_output(pool.exit_output)
            if isinstance(pool.launcher, SpawnLauncher):  # the fork server lives as long as this process
                pool.launcher.close()
        self._pools.clear()
        self._leases.close()
