"""A rank finds its numbers and the address of the others, and binds its device, or its error names what is missing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import leaving
import pytest
import torch

from pytest_ddp import DDPContext, distributed
from reference.communication import process_group
from reference.communication.process_group import (
    RankInfo,
    cleanup,
    current_device,
    find_init_method,
    find_rank_info,
    setup,
)

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
SLURM_STEP = {"SLURM_STEP_NODELIST": "node[07-09,12],gpu1", "SLURM_JOB_ID": "1234567"}


@pytest.mark.parametrize(
    ("environment", "info"),
    [(TORCHRUN, RankInfo(5, 7, 2)), (SLURM, RankInfo(3, 4, 1)), (TORCHRUN | SLURM, RankInfo(5, 7, 2))],
    ids=["torchrun", "slurm", "torchrun inside slurm"],
)
def test_the_environment_has_the_numbers_of_a_rank(environment: dict[str, str], info: RankInfo) -> None:
    assert find_rank_info(environment) == info


def test_arguments_win_over_the_environment() -> None:
    assert find_rank_info(TORCHRUN, 1, 3, 1) == RankInfo(1, 3, 1)
    assert find_rank_info(TORCHRUN, rank=6) == RankInfo(6, 7, 2)


def test_without_a_local_rank_a_rank_given_by_hand_is_the_first_of_its_node() -> None:
    assert find_rank_info({}, 1, 3) == RankInfo(1, 3, 0)


def test_a_missing_number_is_named() -> None:
    with pytest.raises(RuntimeError, match="neither WORLD_SIZE nor SLURM_NTASKS is set: start this program with torch"):
        find_rank_info({"RANK": "0"})


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_must_be_below_the_world_size(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of world size 2: ranks are 0 to 1"):
        find_rank_info({}, rank, 2)


@pytest.mark.parametrize(
    ("environment", "init_method"),
    [
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1"}, "env://"),
        (SLURM_STEP, "tcp://node07:19567"),
        (SLURM_STEP | {"MASTER_PORT": "1"}, "tcp://node07:1"),
        (SLURM_STEP | {"MASTER_ADDR": "host"}, "tcp://host:19567"),
        (SLURM_STEP | {"SLURM_STEP_NODELIST": "gpu1,node[07-09]"}, "tcp://gpu1:19567"),
        (SLURM_STEP | {"SLURM_STEP_NODELIST": "a[3,5]-b"}, "tcp://a3-b:19567"),
        (SLURM_STEP | {"SLURM_STEP_NODELIST": "alone.cluster.org"}, "tcp://alone.cluster.org:19567"),
    ],
)
def test_the_environment_has_the_address_of_the_ranks(environment: dict[str, str], init_method: str) -> None:
    assert find_init_method(environment) == init_method


def test_without_an_address_setup_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RuntimeError, match="MASTER_ADDR and MASTER_PORT are not set, so the ranks cannot find each"):
        setup("gloo", rank=0, world_size=1)


def test_setup_joins_a_group_and_cleanup_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    assert setup("gloo", rank=0, world_size=1) == torch.device("cpu")
    assert torch.distributed.get_backend() == "gloo"
    cleanup()
    assert not torch.distributed.is_initialized()
    cleanup()  # does nothing without a group


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read as Linux tells them")
def test_leaving_ends_the_threads_of_every_group_while_the_interpreter_lives() -> None:
    program = Path(leaving.__file__)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    answer = subprocess.run([sys.executable, program], env=environment, check=True, capture_output=True, text=True)
    before, after = map(int, answer.stdout.split())
    assert before >= 2  # two groups, each with a thread that has been used and so has its name
    assert after == 0


@pytest.mark.parametrize(
    ("gpus", "backend", "device", "chosen"),
    [
        (0, None, None, ("cpu", "gloo")),
        (0, "gloo", None, ("cpu", "gloo")),
        (2, None, None, ("cuda", "nccl")),
        (2, "gloo", None, ("cpu", "gloo")),
        (2, "gloo", "cuda", ("cuda", "gloo")),
        (2, None, "cpu", ("cpu", "gloo")),
        (2, "nccl", None, ("cuda", "nccl")),
    ],
)
def test_backend_and_device_fit_each_other(
    gpus: int, backend: str | None, device: str | None, chosen: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    assert process_group._choose(backend, device) == chosen


def bind(local_rank: int, gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device of a rank on a node with this many GPUs, which are simulated: the binding is only recorded."""
    bound: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", bound.append)
    device = process_group._bind("cuda", backend, RankInfo(4, 8, local_rank))
    assert bound == [device]
    return device


def test_each_rank_of_a_node_binds_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [bind(rank, 2, "nccl", monkeypatch).index for rank in (0, 1)] == [0, 1]


def test_ranks_share_gpus_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [bind(rank, 2, "gloo", monkeypatch).index for rank in (0, 1, 2, 3)] == [0, 1, 0, 1]


@pytest.mark.parametrize(("backend", "given"), [("nccl", torch.device("cuda", 1)), ("gloo", None)])
def test_nccl_gets_the_bound_device_when_the_group_is_made(
    backend: str, given: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_args, **options: calls.append(options))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert setup(backend, "cuda", rank=3, world_size=4, local_rank=1) == torch.device("cuda", 1)
    assert calls == [{"init_method": "env://", "rank": 3, "world_size": 4, "device_id": given}]


@pytest.mark.parametrize(("gpus", "backend"), [(1, "nccl"), (0, "nccl"), (0, "gloo")])
def test_a_node_without_enough_gpus_is_refused(gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"rank 4 has local rank 1 on a node with {gpus} GPUs: .* Start fewer ranks"):
        bind(1, gpus, backend, monkeypatch)


@distributed(world_size=2)
def test_the_current_device_is_this_ranks(ddp: DDPContext) -> None:
    assert current_device() == ddp.device
