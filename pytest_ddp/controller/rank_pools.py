"""The warm ranks of a run: one pool per device, and per choice of nodes, started when the first test needs it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import cloudpickle
import pytest

from pytest_ddp.controller.rank_config import session_start
from pytest_ddp.controller.xdist import Leases, shared_folder
from pytest_ddp.hosts.job import Job
from pytest_ddp.hosts.ray_hosts import RayJob
from pytest_ddp.planning.plan import Machine
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import GROUP_TIMEOUT_MARGIN
from pytest_ddp.pool.launcher import ForkLauncher, launcher_for, shared_launcher
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import HOST, SIMULATED_HOST
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
        job: the job whose nodes the ranks run on; None if pytest was started by itself.
    """

    config: pytest.Config
    settings: Settings
    summary: Summary
    timeout_margin: float = GROUP_TIMEOUT_MARGIN
    job: Job | RayJob | None = None
    _pools: dict[tuple[object, ...], RankPool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leases = Leases(shared_folder(self.config))

    def of(self, world: World) -> RankPool:
        """Return the pool for a world; raise LaunchError if this run's ranks cannot be configured."""
        job = None if world.simulated else self.job
        key = (world.simulated, world.device, *(job.layout(world) if job else ()))
        if key not in self._pools:
            capture = self.config.getoption("capture", "no") != "no"
            body = cloudpickle.dumps(session_start(self.config, self.settings))
            options = {
                "host": SIMULATED_HOST if world.simulated else HOST,
                "host_body": body,
                "capture": capture,
                "counts": self.summary.ranks,
            }
            options["timeout_margin"] = self.timeout_margin
            start = partial(job.pool, world) if job else partial(RankPool, launcher_for(world.device))
            self._pools[key] = start(**options)
        return self._pools[key]

    def preload(self) -> None:
        """Begin to import what ranks need, on this node, if it has any, and on the others."""
        if not isinstance(self.job, RayJob):
            shared_launcher().start_server()
        if self.job:
            self.job.preload()

    def lease(self, world: World) -> AbstractContextManager[World]:
        """Hold the cores or GPUs that a world needs among the workers of an xdist run; give the world with its GPUs."""
        return self._leases.hold(world, Machine.detect())

    def close(self) -> None:
        """End every rank."""
        for pool in self._pools.values():
            pool.close()
            self.summary.add_exit_output(pool.exit_output)
            if not isinstance(pool.launcher, ForkLauncher):  # the fork server lives as long as this process
                pool.launcher.close()
        self._pools.clear()
        self._leases.close()
