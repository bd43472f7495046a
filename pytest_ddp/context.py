"""What a test sees of its rank: the value of the `ddp` fixture."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True)
class DDPContext:
    """This rank's place in its world.

    Attributes:
        rank: from 0 to world_size - 1.
        world_size: number of ranks.
        local_rank: rank among those of this machine.
        device: where this rank's tensors belong; on CUDA also the current device. Its index is `local_rank` unless
            the workers of pytest-xdist share the GPUs.
        backend: "gloo", "nccl", ...
        group: the default process group.
    """

    rank: int
    world_size: int
    local_rank: int
    device: "torch.device"
    backend: str
    group: "dist.ProcessGroup" = field(repr=False)
