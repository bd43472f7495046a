"""How a rank joins and leaves the default process group, with a device of its own.

To join the group, a process must know three numbers: its rank, the world size, and its local rank, which is its rank
among the ranks of its node and decides which GPU it uses. torchrun and SLURM set them in environment variables;
arguments can set them, too. The process must also know the address at which the ranks connect to each other.

With NCCL, a rank must bind its GPU before the first collective. Otherwise every rank uses GPU 0 at first, which wastes
memory there and can make barriers hang.

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

_LOWEST_PORT, _PORTS = 15000, 10000  # a SLURM job's id chooses one of these ports if MASTER_PORT is not set


@dataclass(frozen=True)
class RankInfo:
    """The numbers of a rank.

    Attributes:
        rank: its number among all ranks.
        world_size: the number of all ranks.
        local_rank: its number among the ranks of its node.
    """

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
        backend: "nccl", "gloo", or another backend of torch. None: NCCL for CUDA, gloo for CPU.
        device: "cuda" or "cpu". None: CUDA with NCCL; without a backend, CUDA if there is a GPU; else CPU. Ranks that
            use CUDA with gloo may share a GPU.
        rank: number among all ranks. None: `RANK`, which torchrun sets, else `SLURM_PROCID`.
        world_size: number of ranks. None: `WORLD_SIZE`, else `SLURM_NTASKS`.
        local_rank: number among the ranks of this node. None: 0 if `rank` and `world_size` are given, else
            `LOCAL_RANK`, else `SLURM_LOCALID`.

    Returns:
        The device for this rank's tensors.

    Raises:
        RuntimeError: a number or the address is neither given nor in the environment.
        ValueError: the rank is not below the world size, or NCCL needs more GPUs than this node has.
    """
    info = find_rank_info(os.environ, rank, world_size, local_rank)
    device, backend = _choose(backend, device)
    bound = _bind(device, backend, info)
    dist.init_process_group(
        backend,
        init_method=find_init_method(os.environ),
        rank=info.rank,
        world_size=info.world_size,
        device_id=bound if backend == "nccl" else None,
    )
    return bound


def cleanup() -> None:
    """Leave the default process group, if this rank is in one.

    A gloo group keeps its threads as long as an object refers to it. If the last reference goes away while the
    interpreter exits, the process aborts ("terminate called without an active exception"). So the garbage collector
    runs here, to free objects in cycles. And `torch.distributed.nn` is imported at the top of this module, before there
    is a group: its functions keep the default group at the time of their import as a default argument, and optimizers
    would import them later.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def current_device() -> torch.device:
    """The device that `setup` returned: the current GPU if this process uses CUDA, else the CPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def find_rank_info(
    environment: Mapping[str, str],
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> RankInfo:
    """The numbers of this rank: the arguments, or else the variables of torchrun or SLURM.

    Raises:
        RuntimeError: a number is neither given nor in the environment.
        ValueError: the rank is not one of 0 to world size - 1.
    """
    if local_rank is None and rank is not None and world_size is not None:
        local_rank = 0
    info = RankInfo(
        rank=_given_or_read(rank, environment, "RANK", "SLURM_PROCID"),
        world_size=_given_or_read(world_size, environment, "WORLD_SIZE", "SLURM_NTASKS"),
        local_rank=_given_or_read(local_rank, environment, "LOCAL_RANK", "SLURM_LOCALID"),
    )
    if not 0 <= info.rank < info.world_size:
        raise ValueError(f"rank {info.rank} of world size {info.world_size}: ranks are 0 to {info.world_size - 1}")
    return info


def _given_or_read(given: int | None, environment: Mapping[str, str], *names: str) -> int:
    if given is not None:
        return given
    for name in names:
        if name in environment:
            return int(environment[name])
    raise RuntimeError(
        f"neither {' nor '.join(names)} is set: start this program with torchrun or srun, "
        "or pass rank, world_size and local_rank to setup()"
    )


def find_init_method(environment: Mapping[str, str]) -> str:
    """The address at which the ranks connect to each other, as `init_process_group` takes it.

    It is `MASTER_ADDR` and `MASTER_PORT` if they are set; else, in a SLURM job, the first node of the step and a port
    that is computed from the job's id.

    Raises:
        RuntimeError: there is no address in the environment.
    """
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        return "env://"
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_JOB_ID" not in environment:
        raise RuntimeError(
            "MASTER_ADDR and MASTER_PORT are not set, so the ranks cannot find each other: start this program with "
            "torchrun or srun, or set them to the host of rank 0 and a free port there"
        )
    port = environment.get("MASTER_PORT", _LOWEST_PORT + int(environment["SLURM_JOB_ID"]) % _PORTS)
    host = environment.get("MASTER_ADDR", _first_host(environment["SLURM_STEP_NODELIST"]))
    return f"tcp://{host}:{port}"


def _first_host(nodelist: str) -> str:
    """The first host of a list in SLURM's notation: `node07` for `node[07-09,12],gpu1`."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodelist, count=1).split(",")[0]


def _choose(backend: str | None, device: str | None) -> tuple[str, str]:
    if device is None:
        wants_cuda = backend == "nccl" or (backend is None and torch.cuda.is_available())
        device = "cuda" if wants_cuda else "cpu"
    return device, backend or ("nccl" if device == "cuda" else "gloo")


def _bind(device: str, backend: str, info: RankInfo) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    gpus = torch.cuda.device_count()
    if gpus == 0 or (backend == "nccl" and info.local_rank >= gpus):
        raise ValueError(
            f"rank {info.rank} has local rank {info.local_rank} on a node with {gpus} GPUs: NCCL needs one GPU per "
            "rank. Start fewer ranks, or use backend 'gloo', with device 'cpu' if there is no GPU"
        )
    bound = torch.device("cuda", info.local_rank % gpus)
    torch.cuda.set_device(bound)
    return bound
