"""Makes the value of the fixture `ddp` on a rank."""

import torch.distributed as dist

from pytest_ddp.context import DDPContext
from pytest_ddp.group import device_of
from pytest_ddp.worker import Rank


def context() -> DDPContext:
    """Return the place of this rank in the world of the test at hand."""
    rank, run = Rank.current.launch.rank, Rank.current.run
    if run is None or dist.group.WORLD is None:
        raise RuntimeError("this rank has no process group: the test has destroyed it")
    return DDPContext(rank, run.size, rank, device_of(rank, run), run.backend, dist.group.WORLD)
