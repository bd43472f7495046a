"""Ray nodes with networks of their own: pytest runs beside the head, and its ranks on two further nodes."""

import re
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated_nodes import Command, Node, Nodes
from torchrun import ONE_THREAD, project

pytest.importorskip("ray", reason="Ray nodes need the package ray (pytest-ddp[ray])")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

RAY = str(Path(sysconfig.get_path("scripts")) / "ray")
PORT = 6379
# Ray calls a node dead that has not answered for `failure_threshold` times `period_ms`.
QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}
SUITE = """
import socket
import torch.distributed as dist
from pytest_ddp import distributed

@distributed(world_size=4, nodes=2)
def test_ranks_are_on_two_nodes(ddp):
    found = [None] * 4
    dist.all_gather_object(found, (socket.gethostname(), ddp.node_rank, ddp.local_rank))
    assert sorted(name for name, _, _ in found) == ["node1", "node1", "node2", "node2"]
    assert [place for _, *place in found] == [[0, 0], [0, 1], [1, 0], [1, 1]]

@distributed(world_size=4)
def test_fails_on_rank_3(ddp):
    assert ddp.rank < 3
"""

LOSES_A_NODE = """
import socket, time
from pathlib import Path
import torch, torch.distributed as dist
from pytest_ddp import distributed

@distributed(world_size=4, timeout=100)
def test_trains_until_the_fault(ddp):
    Path(__file__).with_name(f"rank{ddp.rank}").write_text(socket.gethostname())
    while True:
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.01)

@distributed(world_size=2)
def test_on_the_node_that_is_left(ddp):
    dist.barrier()
"""
FAULTS = {"its link is cut": Node.cut, "its power is cut": Node.power_off}


@pytest.fixture
def cluster(make_nodes: Callable[[int], Nodes]) -> Iterator[Nodes]:
    """Three nodes: the head, which runs no ranks, and two nodes of two CPUs."""
    nodes = make_nodes(3)
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the path of a socket has at most 107 characters
    head = ("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}")
    join = (f"--address={nodes[0].address}:{PORT}", "--num-cpus=2")
    try:
        for node in nodes:
            options = head if node is nodes[0] else join
            start = (RAY, "start", *options, f"--node-ip-address={node.address}", "--block")
            node.start(*start, env=QUICK).wait_for("--block")
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(folder)


def started(cluster: Nodes, tmp_path: Path, *suite: str) -> Command:
    """Start pytest on the head, with two ranks on each of the other nodes."""
    folder = project(tmp_path / "project", *suite)
    ray = ("--ddp-launcher=ray", f"--ddp-ray-address={cluster[0].address}:{PORT}", "--ddp-ray-ranks=2,2")
    python = str(Path(sysconfig.get_path("scripts")) / "python")
    command = (python, "-m", "pytest", "-p", "no:cacheprovider", "-v", *ray)
    return cluster[0].start(*command, cwd=folder, env={**ONE_THREAD, **QUICK})


def test_ranks_run_on_two_nodes(cluster, tmp_path):
    run = started(cluster, tmp_path, SUITE)
    assert run.wait(300) == 1, run.output
    assert "job of 4 ranks on 2 Ray nodes" in run.output
    assert "rank 3 of 4 (gloo, cpu) raised AssertionError: assert 3 < 3" in run.output
    assert "1 failed, 1 passed" in run.output


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_that_is_lost_costs_the_test_on_it(cluster, tmp_path, fault):
    run = started(cluster, tmp_path, LOSES_A_NODE)
    places = [tmp_path / "project" / f"rank{rank}" for rank in range(4)]
    while not all(file.exists() and file.read_text() for file in places):
        assert run.running(), run.output
        time.sleep(0.05)
    lost = next(node for node in cluster if node.name == places[3].read_text())
    FAULTS[fault](lost)
    assert run.wait(300) == 1, run.output
    assert re.search(rf"was on node {lost.name} \(Ray node \w+\), which was lost: ", run.output), run.output
    assert "1 failed, 1 passed" in run.output
