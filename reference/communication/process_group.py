"""Joining and leaving the default process group, each rank on a device of its own.

A rank needs to know its place before it can meet the others: rank, world size, and its rank among those of its node,
which decides the GPU that it uses. torchrun and SLURM say so in the environment; arguments say it by hand.

NCCL needs the device to be bound before the first collective: without that every rank talks through GPU 0 until it
says otherwise, which wastes that GPU's memory and can hang barriers.

Source: PyTorch's documentation of torch.distributed, "Environment variable initialization", and of torchrun; SLURM's
srun, "Output environment variables".
"""

import gc
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # see `cleanup`

_LOWEST_PORT, _PORTS = 15000, 10000  # where SLURM jobs meet, by job id, if MASTER_PORT does not say


@dataclass(frozen=True)
class Place:
    """Where a rank stands: among all ranks, and among those of its node."""

    rank: int
    world_size: int
    local_rank: int


def setup(
    backend: str | None = None,
    device: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> torch.device:
    """Join the default process group and bind this rank's device.

    Args:
        backend: "nccl", "gloo", or another that torch offers; None: NCCL for CUDA, gloo for CPU.
        device: "cuda" or "cpu"; None: CUDA with NCCL, or where no backend is named and there is a GPU; else CPU. Ranks
            that use CUDA with gloo may share a GPU.
        rank: place among all ranks; None: `RANK` as set by torchrun, else `SLURM_PROCID`.
        world_size: number of ranks; None: `WORLD_SIZE`, else `SLURM_NTASKS`.
        local_rank: place among the ranks of this node; None: `LOCAL_RANK`, else `SLURM_LOCALID`, else 0 if `rank` and
            `world_size` are given.

    Returns:
        The device for this rank's tensors.

    Raises:
        RuntimeError: the environment does not say where this rank stands or where the ranks meet.
        ValueError: the rank is not below the world size, or NCCL is asked for more ranks than this node has GPUs.
    """
    place = find_place(os.environ, rank, world_size, local_rank)
    device, backend = _choose(backend, device)
    bound = _bind(device, backend, place)
    dist.init_process_group(
        backend,
        init_method=find_meeting_point(os.environ),
        rank=place.rank,
        world_size=place.world_size,
        device_id=bound if backend == "nccl" else None,
    )
    return bound


def cleanup() -> None:
    """Leave the default process group, if this rank is in one.

    A gloo group that somebody still holds keeps its threads, and one that lets go of its last work while the
    interpreter is ending aborts the process ("terminate called without an active exception"). So what only the garbage
    collector can free goes now; and the functions of `torch.distributed.nn`, which take the default group of the time
    of their import for a default argument, are imported before there is one: optimizers would import them later.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def current_device() -> torch.device:
    """The device that `setup` bound: the current GPU if this process uses CUDA, else the CPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def find_place(
    environment: Mapping[str, str],
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> Place:
    """The place that the arguments give; what they leave open, torchrun's or SLURM's variables say.

    Raises:
        RuntimeError: neither says it.
        ValueError: the rank is not one of 0 to world size - 1.
    """
    if local_rank is None and rank is not None and world_size is not None:
        local_rank = 0
    place = Place(
        rank=_given_or_read(rank, environment, "RANK", "SLURM_PROCID"),
        world_size=_given_or_read(world_size, environment, "WORLD_SIZE", "SLURM_NTASKS"),
        local_rank=_given_or_read(local_rank, environment, "LOCAL_RANK", "SLURM_LOCALID"),
    )
    if not 0 <= place.rank < place.world_size:
        raise ValueError(
            f"rank {place.rank} of world size {place.world_size}: ranks count from 0 to {place.world_size - 1}"
        )
    return place


def _given_or_read(given: int | None, environment: Mapping[str, str], *names: str) -> int:
    if given is not None:
        return given
    for name in names:
        if name in environment:
            return int(environment[name])
    raise RuntimeError(
        f"neither {' nor '.join(names)} is set: start this program with torchrun or srun, "
        "or give rank, world_size and local_rank to setup()"
    )


def find_meeting_point(environment: Mapping[str, str]) -> str:
    """Where the ranks meet, as `init_process_group` takes it.

    `MASTER_ADDR` and `MASTER_PORT` if they are set; else, in a SLURM job, the first node of the step, at a port that
    follows from the job's id.

    Raises:
        RuntimeError: nothing says it.
    """
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        return "env://"
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_JOB_ID" not in environment:
        raise RuntimeError(
            "MASTER_ADDR and MASTER_PORT are not set, so the ranks do not know where to meet: start this program with "
            "torchrun or srun, or set them to the host of rank 0 and a free port there"
        )
    port = environment.get("MASTER_PORT", _LOWEST_PORT + int(environment["SLURM_JOB_ID"]) % _PORTS)
    host = environment.get("MASTER_ADDR", _first_host(environment["SLURM_STEP_NODELIST"]))
    return f"tcp://{host}:{port}"


def _first_host(nodelist: str) -> str:
    """The first host of SLURM's short notation: `node07` of `node[07-09,12],gpu1`."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodelist, count=1).split(",")[0]


def _choose(backend: str | None, device: str | None) -> tuple[str, str]:
    if device is None:
        wants_cuda = backend == "nccl" or (backend is None and torch.cuda.is_available())
        device = "cuda" if wants_cuda else "cpu"
    return device, backend or ("nccl" if device == "cuda" else "gloo")


def _bind(device: str, backend: str, place: Place) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    gpus = torch.cuda.device_count()
    if gpus == 0 or (backend == "nccl" and place.local_rank >= gpus):
        raise ValueError(
            f"rank {place.rank} is number {place.local_rank} on its node, which has {gpus} GPUs: NCCL needs one per "
            "rank. Start fewer ranks, or use backend 'gloo', with device 'cpu' if there is no GPU"
        )
    bound = torch.device("cuda", place.local_rank % gpus)
    torch.cuda.set_device(bound)
    return bound
