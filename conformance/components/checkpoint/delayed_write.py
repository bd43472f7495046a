"""Lets rank 0 write a file last of all, to see whether the other ranks wait until it is there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import DistStoreError

from pytest_ddp.rank.collective_hooks import watch_collectives

_PATIENCE = timedelta(seconds=5)  # with ranks that neither leave nor communicate, but watch the file system


@dataclass
class Seen:
    """Whether the file was there when this rank left the block."""

    there: bool = False


@contextmanager
def last_to_write(path: Path) -> Iterator[Seen]:
    """Let rank 0's first `torch.save` in the block begin when each other rank has left it, or entered a collective."""
    store, rank, seen = dist.distributed_c10d._get_default_store(), dist.get_rank(), Seen()  # noqa: SLF001  torch's only way
    others = [f"{path}: {other} is waiting or has left" for other in range(1, dist.get_world_size())]
    if rank == 0:
        with mock.patch("torch.save", _after(store, others)):
            yield seen
    else:
        with watch_collectives(lambda _: store.set(others[rank - 1], "")):
            yield seen
    seen.there = path.exists()
    if rank != 0:
        store.set(others[rank - 1], "")


def _after(store: dist.Store, keys: list[str]) -> Any:
    """Return `torch.save`, which waits for these keys first."""
    save = torch.save

    def waiting(*args: Any, **options: Any) -> None:
        with suppress(DistStoreError):
            store.wait(keys, _PATIENCE)
        save(*args, **options)

    return waiting
