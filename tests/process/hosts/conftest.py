"""A Ray cluster on this machine, for the tests that need one."""

import psutil
import pytest


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of which the head runs nothing, and two nodes of two CPUs; they are its `nodes`."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # noqa: PLC0415  only if there is Ray

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def node_of(cluster):
    """Return a function that finds the node on which a process runs."""

    def find(pid):
        parents = {one.pid for one in psutil.Process(int(pid)).parents()}
        return next(node for node in cluster.nodes if node.all_processes["raylet"][0].process.pid in parents)

    return find
