"""Rank hosts on the nodes of a Ray cluster: a task in each bundle of a placement group starts the ranks of the bundle.

Ray decides on which node a bundle is, and moves it to another one if that node is lost: then the ranks of the bundle
get a new host when they are needed next.
"""

import itertools
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Self

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts.host import Host
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.launcher import HostLauncher, preload
from pytest_ddp.hosts.messages import Preload
from pytest_ddp.hosts.pool import HostedPool
from pytest_ddp.hosts.ray_connection import connect, ray_package
from pytest_ddp.hosts.serving import serve_host
from pytest_ddp.planning.nodes import ranks_of_job
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import launcher_for
from pytest_ddp.pool.rendezvous import Rendezvous
from pytest_ddp.protocol.targets import modules_to_preload

_PLACE_SECONDS = 60.0  # until a bundle must have a node, and its host must have connected
_POLL_SECONDS = 0.1
_OPTION = "--ddp-launcher=ray"
# Variables of a node that its ranks keep; all others are those of the controller.
_OF_THE_NODE = ("PATH", "HOME", "HOSTNAME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def _ray() -> Any:
    ray = ray_package(_OPTION)
    import_module("ray.util.scheduling_strategies")  # is not imported with ray itself
    return ray


@dataclass
class Bundle:
    """A bundle of the placement group: it reserves a CPU for each of its ranks, on one node.

    Attributes:
        index: its number in the placement group.
        ranks: the ranks of the job that it has.
        task: Ray's reference to the task that serves them.
        host: their rank host, once it has connected.
    """

    index: int
    ranks: tuple[int, ...]
    task: Any = None
    host: Host | None = None


@dataclass
class RayCluster:
    """The rank hosts of a run on a Ray cluster; use as a context manager.

    Attributes:
        hosts: where they connect.
        bundles: one for each node that the run uses.
    """

    hosts: Hosts
    bundles: Sequence[Bundle]
    _group: Any
    _connected_here: bool
    _ray: Any = field(default_factory=_ray)

    @classmethod
    def reserve(cls, ranks: Sequence[int], address: str | None = None) -> Self:
        """Reserve so many ranks on each of so many nodes of a cluster, and start their hosts; do not wait for them.

        Args:
            ranks: how many ranks each node has.
            address: of the cluster; None for the one that Ray finds, or else one that it starts here.

        Raises:
            UsageError: Ray is not installed, or there is no cluster at this address.
        """
        ray = _ray()
        connects = connect(ray, address, _OPTION)
        group = ray.util.placement_group([{"CPU": count} for count in ranks], strategy="STRICT_SPREAD")
        numbers = itertools.count()
        bundles = [Bundle(index, tuple(itertools.islice(numbers, count))) for index, count in enumerate(ranks)]
        cluster = cls(Hosts.listen(ray.util.get_node_ip_address()), bundles, group, connects)
        for bundle in bundles:
            cluster._start(bundle)
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0)

    def close(self, exit_code: int) -> None:
        """End all ranks and their hosts, and give back what was reserved."""
        self.hosts.close(exit_code)
        if self._ray.is_initialized():
            self._ray.util.remove_placement_group(self._group)
        if self._connected_here:
            self._ray.shutdown()

    @property
    def address(self) -> tuple[str, int]:
        """Where hosts connect."""
        return self.hosts.listener.getsockname()[0], self.hosts.port

    def host_of(self, rank: int) -> Host:
        """Return the host of a rank; wait for it, or for another one if its node was lost.

        Raises:
            LaunchError: no node has room for the bundle of this rank, or its host cannot be started there.
        """
        bundle = next(one for one in self.bundles if rank in one.ranks)
        if bundle.host is None or bundle.host.lost:
            if bundle.host is not None:
                self._start(bundle)
            bundle.host = self._connected(bundle)
            bundle.host.send(Preload(modules_to_preload()))
        return bundle.host

    def _start(self, bundle: Bundle) -> None:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle.index
        )
        serve = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(_serve)
        bundle.task = serve.remote(self.address, self.hosts.secret, bundle.ranks, dict(os.environ), list(sys.path))

    def _connected(self, bundle: Bundle) -> Host:
        end = time.monotonic() + _PLACE_SECONDS
        while time.monotonic() < end:
            for host in self.hosts.hosts:
                if host.hello.ranks == bundle.ranks and not host.lost:
                    return host
            if self._ray.wait([bundle.task], timeout=_POLL_SECONDS)[0]:
                raise LaunchError(f"{self._name(bundle)} cannot be started: {self._ended(bundle)}")
        before = f"{bundle.host.lost}, and " if bundle.host else ""
        raise LaunchError(
            f"{before}no node of the Ray cluster had {len(bundle.ranks)} CPUs for {self._name(bundle)} within "
            f"{_PLACE_SECONDS:g} s: see `ray status`"
        )

    def _name(self, bundle: Bundle) -> str:
        return f"the host of ranks {', '.join(map(str, bundle.ranks))}"

    def _ended(self, bundle: Bundle) -> str:
        try:
            return str(self._ray.get(bundle.task))
        except self._ray.exceptions.RayError as error:
            return f"{type(error).__name__}: {error}"


@dataclass
class RayLauncher(HostLauncher):
    """A launcher whose ranks run on the nodes of a Ray cluster.

    Attributes:
        cluster: has their hosts.
        ranks: the rank of the job that is each rank of a world.
    """

    cluster: RayCluster = field(kw_only=True)
    ranks: Sequence[int] = field(kw_only=True)

    def host_of(self, rank: int) -> Host:
        """Return the host that starts a rank; see `RayCluster.host_of`."""
        return self.cluster.host_of(self.ranks[rank])


@dataclass
class RayJob:
    """The ranks that a run has on a Ray cluster, in the form of `job.Job`; none of them is on this machine.

    Attributes:
        ranks: how many ranks each node has.
        address: of the cluster; None for the one that Ray finds, or else one that it starts here.
        at_first: the environment variables with which this process began.
    """

    ranks: tuple[int, ...]
    address: str | None = None
    at_first: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _cluster: RayCluster | None = None

    def __str__(self) -> str:
        return f"{sum(self.ranks)} ranks on {len(self.ranks)} Ray node{'s' * (len(self.ranks) > 1)}"

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The number of the node of each rank."""
        return tuple(node for node, count in enumerate(self.ranks) for _ in range(count))

    @property
    def cluster(self) -> RayCluster:
        """The hosts; they are started when this is first read. Raises UsageError, see `RayCluster.reserve`."""
        if self._cluster is None:
            self._cluster = RayCluster.reserve(self.ranks, self.address)
        return self._cluster

    @cached_property
    def rendezvous(self) -> Rendezvous:
        """The store that ranks of all nodes reach."""
        return Rendezvous(self.cluster.address[0])

    def layout(self, world: World) -> tuple[int, ...]:
        """Return what tells the pool of a world from others: () for the first ranks of the job."""
        return () if world.nodes in {(), self.nodes[: world.size]} else world.nodes

    def pool(self, world: World, **options: Any) -> HostedPool:
        """Return a new pool for worlds with the layout of this one; `options` are those of `RankPool`."""
        if world.device != "cpu":
            raise LaunchError("ranks on Ray nodes use CPUs, and this test asks for GPUs")
        ranks = ranks_of_job(self.layout(world) or self.nodes, self.nodes)
        hosts, local = self.cluster.hosts, launcher_for(world.device)
        launcher = RayLauncher(hosts, local, (), world.device, cluster=self.cluster, ranks=ranks)
        return HostedPool(launcher=launcher, rendezvous=self.rendezvous, at_first=self.at_first, **options)

    def preload(self, device: str = "cpu") -> None:
        """Let the hosts that have connected import what ranks need, unless they have done so."""
        preload(self.cluster.hosts, modules_to_preload(), device)

    def close(self) -> None:
        """End all ranks and their hosts."""
        if self._cluster is not None:
            self._cluster.close(0)


def _serve(
    address: tuple[str, int], secret: bytes, ranks: tuple[int, ...], environment: dict[str, str], path: list[str]
) -> str:
    """Serve ranks in a Ray worker, until the run ends; return why it has ended."""
    sys.path[:] = path
    own = {name: os.environ[name] for name in _OF_THE_NODE if name in os.environ}
    node = f"{socket.gethostname()} (Ray node {_ray().get_runtime_context().get_node_id()[:8]})"
    return serve_host(address, secret, node=node, ranks=ranks, environment=environment | own).reason
