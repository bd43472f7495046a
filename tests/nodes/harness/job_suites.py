"""Suites that a job of two nodes runs: `test_torchrun.py` writes them into projects of their own."""

PREAMBLE = """
import os, signal, socket, time
from pathlib import Path
import pytest, torch, torch.distributed as dist
from hypothesis import given, settings, strategies as st
from pytest_ddp import distributed

def everywhere(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
"""
ALL_KINDS = """
@distributed(world_size=4, nodes=2)
def test_ranks_are_on_two_nodes(ddp):
    places = everywhere((socket.gethostname(), ddp.node_rank, ddp.local_rank, ddp.local_world_size))
    assert places == [("node0", 0, 0, 2), ("node0", 0, 1, 2), ("node1", 1, 0, 2), ("node1", 1, 1, 2)]

@distributed(world_size=4)
def test_fails_on_rank_3(ddp):
    dist.barrier()
    assert ddp.rank != 3, f"seen on {socket.gethostname()}"

@distributed(world_size=4)
def test_dies_on_rank_2(ddp):
    if ddp.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

@distributed(world_size=4, observe=True)
def test_is_observed(ddp):
    dist.all_reduce(torch.ones(3))
    assert [entry.op for entry in ddp.collectives] == ["all_reduce"]

@distributed(world_size=4)
def test_deadlocks(ddp):
    if ddp.rank != 1:
        dist.barrier()

@distributed(world_size=4, timeout=3)
def test_hangs_on_rank_3(ddp):
    while ddp.rank == 3:
        time.sleep(0.1)
    dist.barrier()

@distributed(world_size=4)
@pytest.fixture(scope="module")
def ranks_of_the_fixture(ddp):
    return everywhere(ddp.rank)

@distributed
def test_has_a_fixture(ranks_of_the_fixture):
    assert ranks_of_the_fixture == [0, 1, 2, 3]

@settings(max_examples=5, deadline=None, database=None, derandomize=True)
@distributed(world_size=4)
@given(number=st.integers(0, 100))
def test_examples_are_the_same_everywhere(number):
    assert len(set(everywhere(number))) == 1

def where():
    return socket.gethostname()

def test_calls_functions_on_ranks(ddp_ranks):
    assert ddp_ranks(world_size=4).run(where) == ["node0", "node0", "node1", "node1"]

@distributed(world_size=5)
def test_wants_more_ranks_than_the_job_has(): ...

@distributed(world_size=2)
def test_the_last_one_passes(ddp):
    dist.barrier()
"""
# Trains until a fault ends it; says on which ranks it has begun.
TRAINS = """
@distributed(world_size={size}, timeout=100)
def test_trains_until_the_fault(ddp):
    Path(__file__).with_name(f"begun-{{ddp.rank}}").touch()
    while True:
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.01)

@distributed(world_size={size})
def test_after_the_fault(ddp):
    dist.barrier()

@distributed(world_size=1)
def test_on_rank_0_alone(ddp):
    dist.barrier()
"""
PLACES = """
@distributed(world_size={size})
def test_places(ddp):
    print("PLACES", everywhere((socket.gethostname(), ddp.local_world_size)))
    assert sum(everywhere(1)) == {size}
"""
