"""What a world holds of the machine while its test runs."""

import pytest

from pytest_ddp.lease import Leases
from pytest_ddp.machine import Machine
from pytest_ddp.slots import Slots
from pytest_ddp.world import World

SERVER = Machine(cores=4, cuda_devices=4, backends=frozenset({"gloo", "nccl"}))


def test_who_shares_with_nobody_holds_nothing():
    with Leases(None).hold(World(2, "nccl", "cuda"), SERVER) as world:
        assert world == World(2, "nccl", "cuda")


def test_ranks_on_cuda_get_gpus_of_their_own(tmp_path):
    mine, others = Leases(tmp_path), Leases(tmp_path)
    with mine.hold(World(1, "nccl", "cuda"), SERVER), others.hold(World(2, "nccl", "cuda"), SERVER) as world:
        assert world == World(2, "nccl", "cuda", gpus=(1, 2))
    mine.close()
    others.close()


@pytest.mark.parametrize(("ranks", "cores"), [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_ranks_on_cpu_hold_a_core_each_as_far_as_there_are(tmp_path, ranks, cores):
    leases, slots = Leases(tmp_path), Slots(tmp_path, "core", SERVER.cores)
    with leases.hold(World(ranks), SERVER) as world:
        assert world == World(ranks)
        with slots.take(SERVER.cores - cores) as rest:
            assert rest == list(range(cores, SERVER.cores))
    with slots.take(SERVER.cores) as free:
        assert len(free) == SERVER.cores
    leases.close()
    slots.close()
