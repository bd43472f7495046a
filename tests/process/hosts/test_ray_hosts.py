"""A pool whose ranks run on Ray nodes (processes of this machine): its ranks are warm, and lost nodes are named."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import psutil
import pytest
import rank_targets

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts import ray_hosts
from pytest_ddp.hosts.pool import HostedPool
from pytest_ddp.hosts.ray_hosts import RayCluster, RayLauncher
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.outcomes.outcome import Died, Stopped
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import ForkLauncher

pytest.importorskip("ray", reason="ranks on Ray nodes need the package ray (pytest-ddp[ray])")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

TIMEOUT = 60.0
LONG = 300.0  # seconds; nothing here may need them


@contextmanager
def pool_on(cluster, *ranks: int) -> Iterator[HostedPool]:
    with (
        RayCluster.reserve(ranks, cluster.address) as nodes,
        HostedPool(launcher=RayLauncher(nodes.hosts, ForkLauncher(), (), cluster=nodes, ranks=range(8))) as pool,
    ):
        yield pool


def run(pool: HostedPool, target, size: int = 4, payloads=b"", timeout: float = TIMEOUT):
    return pool.run(World(size), f"{rank_targets.__name__}:{target.__name__}", payloads, timeout=timeout)


def bodies(outcomes) -> list[bytes]:
    assert not failures(outcomes), failures(outcomes)
    return [outcome.body for outcome in outcomes]


def test_ranks_of_two_nodes_form_a_group_and_stay_warm(cluster, node_of):
    with pool_on(cluster, 2, 2) as pool:
        assert bodies(run(pool, rank_targets.all_reduce)) == [b"16"] * 4
        first = bodies(run(pool, rank_targets.process_id))
        assert bodies(run(pool, rank_targets.process_id)) == first
        nodes = [node_of(pid) for pid in first]
        assert nodes[0] is nodes[1] is not nodes[2] is nodes[3]
        ranks = [psutil.Process(int(pid)) for pid in first]
    assert not psutil.wait_procs(ranks, TIMEOUT)[1], "a rank outlives the run"


def test_a_node_that_is_lost_is_named_and_costs_the_runs_on_it_only(cluster, node_of):
    with pool_on(cluster, 2, 2) as pool:
        pids = bodies(run(pool, rank_targets.process_id))
        lost = node_of(pids[3])
        name = pool.launcher.host_of(3).node
        Timer(0.5, cluster.remove_node, [lost], {"allow_graceful": False}).start()
        outcomes = run(pool, rank_targets.says_its_id_and_hangs, timeout=LONG)
        assert [type(outcome) for outcome in outcomes] == [Stopped, Stopped, Died, Died]
        assert f"node {name} was lost: its rank host has ended" in str(RankFailure(outcomes, World(4)))
        assert lost.node_id[:8] in name
        assert bodies(run(pool, rank_targets.all_reduce, 2)) == [b"8"] * 2, "the other node goes on"
        cluster.add_node(num_cpus=2)
        assert bodies(run(pool, rank_targets.all_reduce)) == [b"16"] * 4, "a new node takes its place"


def test_a_cluster_without_room_is_reported(cluster, monkeypatch):
    monkeypatch.setattr(ray_hosts, "_PLACE_SECONDS", 1.0)
    with (
        pool_on(cluster, 2, 3) as pool,
        pytest.raises(LaunchError, match=r"no node of the Ray cluster had [23] CPUs for the host of ranks"),
    ):
        run(pool, rank_targets.echo, 5)


def test_a_worker_that_is_killed_takes_its_ranks_along(cluster):
    with pool_on(cluster, 2) as pool:
        ranks = [psutil.Process(int(pid)) for pid in bodies(run(pool, rank_targets.process_id, 2))]
        worker = next(one for one in ranks[0].parents() if "_serve" in "".join(one.cmdline()))
        worker.kill()
        assert not psutil.wait_procs(ranks, TIMEOUT)[1], "a rank outlives its host"
        assert bodies(run(pool, rank_targets.all_reduce, 2)) == [b"8"] * 2
