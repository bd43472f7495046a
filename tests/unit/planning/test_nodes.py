"""On which nodes of a job the ranks of a test run."""

import pytest

from pytest_ddp.planning.nodes import local_ranks, ranks_of_job, spread
from pytest_ddp.planning.plan import Machine, Refuse, RunOnRanks, Skip, plan
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import World
from pytest_ddp.settings import Settings

EVEN = (0, 0, 0, 0, 1, 1, 1, 1)
UNEVEN = (0, 0, 0, 1, 1, 1, 1)
CYCLIC = (0, 1, 0, 1)


def machine(job: tuple[int, ...], gpus: int = 0) -> Machine:
    return Machine(cores=2, cuda_devices=gpus, backends=frozenset({"gloo", "nccl"}), job=job)


@pytest.mark.parametrize(
    ("size", "wanted", "job", "nodes"),
    [
        (2, None, EVEN, (0, 0)),
        (6, None, EVEN, (0, 0, 0, 0, 1, 1)),
        (3, None, CYCLIC, (0, 1, 0)),
        (2, 1, CYCLIC, (0, 0)),
        (2, 2, EVEN, (0, 1)),
        (4, 2, EVEN, (0, 0, 1, 1)),
        (3, 2, EVEN, (0, 0, 1)),
        (7, 2, UNEVEN, (0, 0, 0, 1, 1, 1, 1)),
        (4, 2, (0, 1, 2, 2, 2), (0, 2, 2, 2)),
    ],
)
def test_ranks_are_spread_evenly_over_as_many_nodes_as_a_test_wants(size, wanted, job, nodes):
    assert spread(size, wanted, job) == nodes


@pytest.mark.parametrize(
    ("size", "wanted", "job", "reason"),
    [
        (9, None, EVEN, "9 ranks are needed; this job has 8"),
        (3, 3, EVEN, "3 nodes are needed; this job has 2"),
        (5, 1, EVEN, "5 ranks on 1 node are needed; this job has 4"),
        (1, 2, EVEN, "1 rank cannot be on 2 nodes"),
    ],
)
def test_what_a_job_lacks(size, wanted, job, reason):
    assert plan(Settings(), Request((size,), nodes=wanted), machine(job)) == Skip(reason)
    assert isinstance(plan(Settings(strict=True), Request((size,), nodes=wanted), machine(job)), Refuse)


def test_a_run_on_one_machine_skips_tests_of_several_nodes():
    reason = "2 nodes are needed; pytest runs on one, unless torchrun, srun or mpirun starts it on several"
    assert plan(Settings(), Request(nodes=2), machine(())) == Skip(reason)
    assert plan(Settings(), Request(nodes=1), machine(())) == RunOnRanks(World(2), 60.0, "warm")


def test_a_world_of_the_first_ranks_on_node_0_is_as_on_one_machine():
    assert plan(Settings(), Request((3,)), machine(EVEN)) == RunOnRanks(World(3), 60.0, "warm")


def test_a_job_may_have_more_ranks_than_the_cores_of_one_node_carry():
    decision = plan(Settings(), Request((40,)), machine((0,) * 20 + (1,) * 20))
    assert decision == RunOnRanks(World(40, nodes=(0,) * 20 + (1,) * 20), 60.0, "warm")


def test_each_node_needs_gpus_for_its_own_ranks_only():
    decision = plan(Settings(), Request((8,), device="cuda"), machine(EVEN, gpus=4))
    assert decision == RunOnRanks(World(8, "nccl", "cuda", nodes=EVEN), 60.0, "warm")
    lacking = plan(Settings(), Request((8,), device="cuda"), machine(EVEN, gpus=2))
    assert lacking == Skip("4 ranks on cuda need 4 GPUs; this machine has 2")


def test_a_world_takes_the_first_ranks_of_each_node():
    assert ranks_of_job((0, 0, 1, 1), EVEN) == (0, 1, 4, 5)
    assert ranks_of_job((0, 1), UNEVEN) == (0, 3)
    assert ranks_of_job((0, 0), CYCLIC) == (0, 2)


def test_where_a_rank_is():
    world = World(4, nodes=(0, 0, 2, 2))
    assert [world.node_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert [world.local_rank(rank) for rank in range(4)] == [0, 1, 0, 1] == list(local_ranks(world.nodes))
    assert [world.local_size(rank) for rank in range(4)] == [2] * 4
    assert str(world) == "4 ranks on 2 nodes, gloo, cpu"
    assert [World(2).node_of(1), World(2).local_rank(1), World(2).local_size(1)] == [0, 1, 2]
