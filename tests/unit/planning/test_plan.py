"""What happens to a test is decided before any process is started."""

import pytest

from pytest_ddp.planning.plan import Machine, Refuse, RunOnRanks, Skip, lack, plan
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import World
from pytest_ddp.settings import Settings

LAPTOP = Machine(cores=2, cuda_devices=0, backends=frozenset({"gloo"}))
SERVER = Machine(cores=16, cuda_devices=4, backends=frozenset({"gloo", "nccl"}))


@pytest.mark.parametrize(
    ("settings", "request_", "machine", "world"),
    [
        (Settings(), Request(), LAPTOP, World(2, "gloo", "cpu")),
        (Settings((3,)), Request(), LAPTOP, World(3, "gloo", "cpu")),
        (Settings((3,)), Request((1,)), LAPTOP, World(1, "gloo", "cpu")),
        (Settings(device="auto"), Request(), LAPTOP, World(2, "gloo", "cpu")),
        (Settings(device="auto"), Request((4,)), SERVER, World(4, "nccl", "cuda")),
        (Settings(device="auto"), Request((5,)), SERVER, World(5, "gloo", "cpu")),
        (Settings(device="cuda"), Request(), SERVER, World(2, "nccl", "cuda")),
        (Settings(device="cuda"), Request(backend="gloo"), SERVER, World(2, "gloo", "cuda")),
        (Settings(), Request(backend="nccl"), SERVER, World(2, "nccl", "cuda")),
        (Settings(), Request((6,), "gloo", "cuda"), SERVER, World(6, "gloo", "cuda", gpus=(0, 1, 2, 3, 0, 1))),
    ],
)
def test_runs_on_the_world_asked_for(settings, request_, machine, world):
    assert plan(settings, request_, machine) == RunOnRanks(world, 60.0, "warm")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request((2,), device="cuda"), "2 ranks on cuda need 2 GPUs; this machine has 0"),
        (Request(backend="nccl"), "2 ranks on cuda need 2 GPUs; this machine has 0"),
        (Request((2,), "gloo", "cuda"), "2 ranks on cuda need 1 GPU; this machine has 0"),
        (Request(backend="mpi"), "backend 'mpi' is not available here; torch offers gloo"),
    ],
)
def test_skips_what_this_machine_lacks(request_, reason):
    assert plan(Settings(), request_, LAPTOP) == Skip(reason)


def test_ranks_over_nccl_do_not_share_a_gpu():
    assert plan(Settings(), Request((5,), "nccl"), SERVER) == Skip("5 ranks on cuda need 5 GPUs; this machine has 4")
    assert plan(Settings(), Request((33,), "gloo", "cuda"), SERVER) == Skip(
        "33 ranks on cuda need 5 GPUs; this machine has 4"
    )


def test_strict_refuses_what_would_be_skipped():
    assert lack(Settings(), "no GPU") == Skip("no GPU")
    assert lack(Settings(strict=True), "no GPU") == Refuse("no GPU (skipped unless --ddp-strict)")


def test_a_test_may_ask_for_no_group():
    decision = plan(Settings(), Request(group=False), LAPTOP)
    assert decision == RunOnRanks(World(2, has_group=False), 60.0, "warm")
    assert str(World(2, has_group=False)) == "2 ranks, gloo, cpu, no group"


def test_refuses_nccl_on_cpu_everywhere():
    refused = plan(Settings(), Request(backend="nccl", device="cpu"), SERVER)
    assert refused == Refuse('backend="nccl" sends CUDA tensors only: remove device="cpu", or write backend="gloo"')


def test_refuses_more_ranks_than_the_cores_can_carry():
    refused = plan(Settings(), Request((17,)), LAPTOP)
    assert refused == Refuse("world size 17 is too large: 2 cores run at most 16 ranks")


def test_timeout_and_isolation_of_the_test_win():
    decision = plan(Settings(timeout=10), Request(timeout=3, isolation="process"), LAPTOP)
    assert decision == RunOnRanks(World(2), 3, "process")
