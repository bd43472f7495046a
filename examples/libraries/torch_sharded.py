"""torch's ZeroRedundancyOptimizer and `fully_shard`, as `conformance.verify` asks for them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer


def zero(params: Iterable[Tensor], optimizer_cls: type[Optimizer], **options: Any) -> Optimizer:
    """Return torch's optimizer with sharded state."""
    return ZeroRedundancyOptimizer(params, optimizer_class=optimizer_cls, **options)


def fsdp2(module: nn.Module, compute_dtype: torch.dtype | None) -> nn.Module:
    """Shard each layer by itself, and what several layers share together with the rest.

    `fully_shard` takes parameters as they are on each rank: its user makes them equal.
    """
    for p in module.parameters():
        dist.broadcast(p.data, src=0)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype)
    holders = Counter(p for part in module.modules() for p in part.parameters(recurse=False))
    for part in list(module.modules())[1:]:
        own = list(part.parameters(recurse=False))
        if own and all(holders[p] == 1 for p in own):
            fully_shard(part, mp_policy=policy)
    return fully_shard(module, mp_policy=policy)


def full_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return every whole parameter."""
    return {name: p.full_tensor() for name, p in module.named_parameters()}
