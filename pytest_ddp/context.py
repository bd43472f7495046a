"""The type of the fixture `ddp`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_ddp.observed.inspection.collectives import Collectives


@dataclass(eq=False, repr=False)
class DDPContext:
    """The rank that runs this test, and its process group.

    A fixture of any scope may keep this object: it always describes the running test.

    Attributes:
        device: the device of this rank, on CUDA the current one: number `local_rank` unless xdist's workers share GPUs.
        store: a store of this test that all its ranks share, for a group that the test makes itself.
        rank: the global rank, from 0 to world_size - 1.
        local_rank: the rank among the ranks on this node.
        local_world_size: the number of ranks on this node.
        node_rank: the number of this node among the nodes of the test, from 0.
        world_size: the number of ranks.
        backend: the backend of the default group: "gloo", "nccl", ...
        seed: the seed of this test, equal on all ranks; the random generators of rank r are seeded with `seed + r`,
            those of a test that `ddp_adopt` adopts with `seed` on every rank.
    """

    device: "torch.device"
    store: "dist.Store"
    rank: int = 0
    local_rank: int = 0
    local_world_size: int = 0
    node_rank: int = 0
    world_size: int = 0
    backend: str = ""
    seed: int = 0
    _shared_path: str = ""

    @property
    def group(self) -> "dist.ProcessGroup":
        """The default process group; raises RuntimeError if there is none."""
        import torch.distributed as dist  # noqa: PLC0415  the controller imports this module without torch

        if dist.group.WORLD is None:
            raise RuntimeError("this rank has no default process group: the test has made none, or destroyed it")
        return dist.group.WORLD

    @property
    def collectives(self) -> "Collectives":
        """The operations of this rank in this test; raises UsageError without `@distributed(observe=True)`."""
        from pytest_ddp.observed import collectives  # noqa: PLC0415  likewise

        return collectives()

    @property
    def shared_path(self) -> Path:
        """A directory of this test that all its ranks share, while each rank has its own `tmp_path`.

        It is made when a rank first reads this attribute.
        """
        path = Path(self._shared_path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size}, {self.backend}, {self.device}>"
