"""A job as its controller uses it: where each rank of a world runs, and the pools of ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.job_process import JobProcess
from pytest_ddp.hosts.launcher import HostLauncher, preload
from pytest_ddp.hosts.network import LOOPBACK, interface_variables
from pytest_ddp.hosts.pool import HostedPool
from pytest_ddp.planning.nodes import ranks_of_job
from pytest_ddp.planning.world import World, format_ranks
from pytest_ddp.pool.launcher import launcher_for
from pytest_ddp.pool.rendezvous import Rendezvous
from pytest_ddp.protocol.targets import modules_to_preload


@dataclass
class Job:
    """The processes of a job, of which this one is the controller.

    Attributes:
        us: this process.
        hosts: the others.
        at_first: the environment variables with which this process began.
    """

    us: JobProcess
    hosts: Hosts
    at_first: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """The names of the nodes, in the order of their first ranks."""
        return list(dict.fromkeys(self._node_names))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The number of the node of each rank of the job."""
        return tuple(map(self.names.index, self._node_names))

    @cached_property
    def _node_names(self) -> list[str]:
        return [host.node if (host := self.hosts.host_of(rank)) else self.us.node for rank in range(self.us.size)]

    @cached_property
    def address(self) -> str:
        """The address of this machine that all nodes reach."""
        for host in self.hosts.hosts:
            if host.node != self.us.node:
                return str(host.connection.socket.getsockname()[0])
        return LOOPBACK

    @cached_property
    def rendezvous(self) -> Rendezvous:
        """The store that ranks of all nodes reach."""
        return Rendezvous(self.address)

    def __str__(self) -> str:
        ranks = [tuple(r for r, node in enumerate(self.nodes) if node == number) for number in range(len(self.names))]
        where = "; ".join(f"{name}: {format_ranks(found)}" for name, found in zip(self.names, ranks, strict=True))
        return f"{self.us.size} ranks on {len(ranks)} node{'s' * (len(ranks) > 1)} ({where})"

    def layout(self, world: World) -> tuple[int, ...]:
        """Return what tells the pool of a world from others: () for the first ranks of the job."""
        return () if world.nodes in {(), self.nodes[: world.size]} else world.nodes

    def pool(self, world: World, **options: Any) -> HostedPool:
        """Return a new pool for worlds with the layout of this one; `options` are those of `RankPool`."""
        ranks = ranks_of_job(self.layout(world) or self.nodes, self.nodes)
        placement = [self.hosts.host_of(rank) for rank in ranks]
        launcher = HostLauncher(self.hosts, launcher_for(world.device), placement, world.device)
        local = interface_variables(self.address, self.at_first)
        return HostedPool(launcher=launcher, rendezvous=self.rendezvous, at_first=self.at_first, local=local, **options)

    def preload(self, device: str = "cpu") -> None:
        """Let all hosts import what ranks need, unless they have done so."""
        preload(self.hosts, modules_to_preload(), device)
