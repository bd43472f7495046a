"""What the tests of the launcher run on ranks that it starts; what they have to say goes into files."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from reference.communication.process_group import current_device


def write_place(folder: Path, number: int) -> None:
    """Sum `number` over the ranks, and write it with this rank's place."""
    total = torch.full((1,), number, device=current_device())
    dist.all_reduce(total)
    place = f"{dist.get_rank()} of {dist.get_world_size()}, local {os.environ['LOCAL_RANK']} on {total.device.type}"
    (folder / str(dist.get_rank())).write_text(f"{place}, sum {total.item()}, {dist.get_backend()}")


def fail_on_rank_1() -> None:
    """Rank 1 raises; rank 0 waits for it in a collective."""
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has had enough")
    dist.barrier()


def stop_on_rank_1_while_rank_0_never_ends() -> None:
    """Rank 1 is gone without a word; rank 0 is in a loop that no collective ends."""
    if dist.get_rank() == 1:
        os._exit(3)
    while True:
        time.sleep(1)


def write_pid_and_never_end(folder: Path) -> None:
    """Tell who to look for, then go on as long as anyone lets us, deaf like a rank that waits inside C++."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"{os.getpid()}.pid").touch()
    while True:
        time.sleep(1)
