"""The type of the fixture `ddp`."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_ddp.observed.inspection.collectives import Collectives


class DDPContext(Protocol):
    """The rank that runs this test, and its process group.

    A fixture of any scope may keep this object: it always describes the running test.
    """

    @property
    def rank(self) -> int:
        """The global rank, from 0 to world_size - 1."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def local_rank(self) -> int:
        """The rank among the ranks on this machine."""

    @property
    def device(self) -> "torch.device":
        """The device of this rank, on CUDA the current one: number `local_rank` unless xdist's workers share GPUs."""

    @property
    def backend(self) -> str:
        """The backend of the default group: "gloo", "nccl", ..."""

    @property
    def group(self) -> "dist.ProcessGroup":
        """The default process group; raises RuntimeError if there is none: with `group=False`, or once destroyed."""

    @property
    def store(self) -> "dist.Store":
        """A store of this test that all its ranks share, for a process group that the test makes itself."""

    @property
    def collectives(self) -> "Collectives":
        """The operations of this rank in this test; raises UsageError without `@distributed(observe=True)`."""

    @property
    def seed(self) -> int:
        """The seed of this test, equal on all ranks; the random generators of rank r are seeded with `seed + r`."""

    @property
    def shared_path(self) -> Path:
        """A directory of this test that all its ranks share, while each rank has its own `tmp_path`."""
