"""`pytest --ddp-launcher=ray`: pytest runs here, and its ranks on two Ray nodes (processes of this machine)."""

import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="ranks on Ray nodes need the package ray (pytest-ddp[ray])")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

TESTS = """
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from pytest_ddp import distributed

PIDS = Path(__file__).parent


@distributed(world_size=4, nodes=2)
def test_sums(ddp):
    (PIDS / f"rank{ddp.rank}.first").write_text(str(os.getpid()))
    assert (ddp.node_rank, ddp.local_rank, ddp.local_world_size) == (ddp.rank // 2, ddp.rank % 2, 2)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 4


@distributed(world_size=4)
def test_stays_warm(ddp):
    assert (PIDS / f"rank{ddp.rank}.first").read_text() == str(os.getpid())


@distributed(world_size=4)
@settings(max_examples=3)
@given(x=st.integers(0, 3))
def test_examples(ddp, x):
    total = torch.tensor(x)
    dist.all_reduce(total)
    assert total.item() == 4 * x


@distributed(world_size=4)
def test_fails_on_rank_3(ddp):
    assert ddp.rank < 3, "rank 3 is wrong"


@distributed(world_size=6)
def test_is_too_large():
    pass


def test_is_plain():
    assert "RAY_JOB_ID" not in os.environ
"""

LOST = """
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pytest_ddp import distributed


def sums(ranks):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == ranks


@distributed(world_size=2)
def test_on_the_first_node():
    sums(2)


@distributed(world_size=4)
def test_loses_a_node(ddp):
    sums(4)
    if ddp.rank == 3:
        Path(__file__).with_name("pid.txt").write_text(str(os.getpid()))
    time.sleep(200)


@distributed(world_size=4)
def test_after_it():
    sums(4)
"""


def started(folder, cluster, text, *options):
    """Start pytest on a file of tests; its output is a text file."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    address = ["--ddp-launcher=ray", f"--ddp-ray-address={cluster.address}", *options]
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:asyncio", "-rs", "-v", *address]
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def test_a_run_on_two_nodes(cluster, tmp_path):
    code = started(tmp_path, cluster, TESTS, "--ddp-ray-ranks=2,2").wait()
    output = (tmp_path / "output.txt").read_text()
    assert code == 1, output
    assert "job of 4 ranks on 2 Ray nodes" in output
    assert "rank 3 is wrong" in output
    assert "6 ranks are needed; this job has 4" in output
    assert "1 failed, 4 passed, 1 skipped" in output


def test_a_lost_node_costs_the_test_on_it(cluster, node_of, tmp_path):
    run = started(tmp_path, cluster, LOST, "--ddp-ray-ranks=2,2")
    pid = tmp_path / "pid.txt"
    while not (pid.exists() and pid.read_text()):
        assert run.poll() is None, (tmp_path / "output.txt").read_text()
        time.sleep(0.1)
    lost = node_of(pid.read_text())
    cluster.add_node(num_cpus=2)
    cluster.remove_node(lost, allow_graceful=False)
    began = time.monotonic()
    assert run.wait() == 1
    output = (tmp_path / "output.txt").read_text()
    assert f"(Ray node {lost.node_id[:8]}) was lost: its rank host has ended" in output
    assert "1 failed, 2 passed" in output, output
    print(f"{time.monotonic() - began:.1f} s from the loss to the end of the run")


def test_a_cluster_that_is_not_there_is_reported(tmp_path):
    class Nowhere:
        address = "127.0.0.1:1"

    code = started(tmp_path, Nowhere, TESTS).wait()
    assert code == 4
    assert "--ddp-launcher=ray: there is no Ray cluster at 127.0.0.1:1: " in (tmp_path / "output.txt").read_text()
