"""What rank 0 does for all: write and read files, once, so that it succeeds or fails on every rank alike.

A rank that fails alone leaves the others waiting in a collective that it never enters. So rank 0 tells how it went, and
a failure is raised everywhere. Without a process group, the one process there is counts as rank 0.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

_PIECE = 64 * 1024 * 1024  # bytes that travel at once: with NCCL they pass through the GPU


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def by_rank_0(action: Callable[[], object]) -> None:
    """Do something on rank 0; every rank waits for it, and raises what it raised. Call on every rank.

    Args:
        action: its exceptions have to be such as `pickle` can copy.
    """
    failure: list[Exception | None] = [None]
    if rank() == 0:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # told to every rank, and raised there
            failure = [error]
    if world_size() > 1:
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]


def send_bytes(data: bytearray) -> bytearray:
    """Rank 0's bytes, on every rank. Call on every rank.

    Args:
        data: what to send; empty on the others.
    """
    if world_size() == 1:
        return data
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, src=0)
    received = data or bytearray(int(size.item()))
    for piece in torch.split(torch.frombuffer(received, dtype=torch.uint8), _PIECE):
        travelling = piece.to(device)
        dist.broadcast(travelling, src=0)
        piece.copy_(travelling)
    return received
