"""What a test sees of its rank: the value of the fixture `ddp`."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_ddp.observed.inspection.collectives import Collectives


class DDPContext(Protocol):
    """This rank's place in the world of the test at hand.

    Fixtures of any scope may keep it: it always tells of the present.
    """

    @property
    def rank(self) -> int:
        """From 0 to world_size - 1."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def local_rank(self) -> int:
        """The rank among those of this machine."""

    @property
    def device(self) -> "torch.device":
        """Where this rank's tensors belong; on CUDA also the current device.

        Its index is `local_rank` unless the workers of pytest-xdist share the GPUs.
        """

    @property
    def backend(self) -> str:
        """The backend of the group: "gloo", "nccl", ..."""

    @property
    def group(self) -> "dist.ProcessGroup":
        """The default process group; raises RuntimeError when the test has destroyed it."""

    @property
    def collectives(self) -> "Collectives":
        """What this rank communicated in this test; raises UsageError unless `@distributed(observe=True)`."""

    @property
    def seed(self) -> int:
        """The seed of this test, the same on all ranks; rank r's random numbers started from `seed + r`."""

    @property
    def shared_path(self) -> Path:
        """A folder of this test that all its ranks share; `tmp_path` is a rank's own."""
