"""The cores and GPUs that a world holds while its test runs."""

from dataclasses import replace

import pytest
import torch

from pytest_ddp.controller.xdist import Leases, Slots
from pytest_ddp.planning.plan import Machine
from pytest_ddp.planning.world import World
from pytest_ddp.rank.process_group import device_of

SERVER = Machine(cores=4, cuda_devices=4, backends=frozenset({"gloo", "nccl"}))


def test_the_gpus_of_a_world_are_its_ranks_devices():
    world = World(2, "nccl", "cuda", gpus=(3, 1))
    assert [device_of(rank, world) for rank in range(2)] == [torch.device("cuda", 3), torch.device("cuda", 1)]
    assert device_of(1, World(2, "nccl", "cuda")) == torch.device("cuda", 1)
    assert device_of(1, replace(world, device="cpu")) == torch.device("cpu")


def test_without_xdist_nothing_is_held():
    with Leases(None).hold(World(2, "nccl", "cuda"), SERVER) as world:
        assert world == World(2, "nccl", "cuda")


def test_ranks_on_cuda_get_gpus_of_their_own(tmp_path):
    mine, others = Leases(tmp_path), Leases(tmp_path)
    with mine.hold(World(1, "nccl", "cuda"), SERVER), others.hold(World(2, "nccl", "cuda"), SERVER) as world:
        assert world == World(2, "nccl", "cuda", gpus=(1, 2))
    mine.close()
    others.close()


def test_more_ranks_than_gpus_hold_all_gpus_and_share_them(tmp_path):
    leases = Leases(tmp_path)
    with leases.hold(World(6, "gloo", "cuda"), SERVER) as world:
        assert world == World(6, "gloo", "cuda", gpus=(0, 1, 2, 3, 0, 1))
    leases.close()


@pytest.mark.parametrize(("ranks", "cores"), [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_ranks_on_cpu_hold_one_core_each_or_all_cores(tmp_path, ranks, cores):
    leases, slots = Leases(tmp_path), Slots(tmp_path, "core", SERVER.cores)
    with leases.hold(World(ranks), SERVER) as world:
        assert world == World(ranks)
        with slots.take(SERVER.cores - cores) as rest:
            assert rest == list(range(cores, SERVER.cores))
    with slots.take(SERVER.cores) as free:
        assert len(free) == SERVER.cores
    leases.close()
    slots.close()
