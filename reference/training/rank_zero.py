"""Actions of rank 0 for all ranks, such as writing and reading a file, that succeed or fail on every rank.

If one rank alone raised, the others would wait for it in the next collective for ever. So rank 0 sends its exception to
all ranks, and every rank raises it. Without a process group, this process counts as rank 0 of 1.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

_PIECE = 64 * 1024 * 1024  # bytes per broadcast: with NCCL, each piece needs memory on the GPU


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def by_rank_0(action: Callable[[], object]) -> None:
    """Run `action` on rank 0 while the others wait; if it raises, raise on every rank. Call on every rank.

    Args:
        action: `pickle` must be able to copy the exceptions that it raises.
    """
    failure: list[Exception | None] = [None]
    if rank() == 0:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # sent to every rank, and raised there
            failure = [error]
    if world_size() > 1:
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]


def send_bytes(data: bytearray) -> bytearray:
    """Send bytes from rank 0 to all ranks. Returns rank 0's bytes, on every rank. Call on every rank.

    Args:
        data: the bytes to send; empty on the other ranks.
    """
    if world_size() == 1:
        return data
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, src=0)
    received = data or bytearray(int(size.item()))
    for piece in torch.split(torch.frombuffer(received, dtype=torch.uint8), _PIECE):
        on_device = piece.to(device)
        dist.broadcast(on_device, src=0)
        piece.copy_(on_device)
    return received
