"""The optimizer's state under FSDP: each rank's optimizer knows its parts only; here they become whole, or parts again.

An element-wise optimizer keeps, for each parameter, tensors of its shape (momentum, second moment) and perhaps a count
of steps. Where the parameter is a rank's part, so are the tensors: put together like the parameter, they are what the
optimizer of the whole model would hold, and fit it, or another number of ranks.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023), section 3;
`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` (`full_state_dict`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.fsdp.sharded_parameter import ShardedParameter, all_gather_single, elements_per_rank


def gather_optimizer_state(optimizer: Optimizer, shards: Mapping[Tensor, ShardedParameter]) -> dict[str, Any]:
    """What the optimizer's `state_dict` would be if no parameter were sharded. A collective.

    Args:
        optimizer: an element-wise one of the sharded module's parameters.
        shards: the module's sharded parameters by their shards.
    """

    def whole(one: ShardedParameter, value: Tensor) -> Tensor:
        return _gather_parts(value, one.shape) if value.shape == one.shard.shape else value

    return _change_tensors(optimizer.state_dict(), optimizer, shards, whole)


def split_optimizer_state(
    state_dict: Mapping[str, Any], optimizer: Optimizer, shards: Mapping[Tensor, ShardedParameter]
) -> dict[str, Any]:
    """A state dict with this rank's parts, where `state_dict` is one of whole parameters."""

    def part(one: ShardedParameter, value: Tensor) -> Tensor:
        return one.own_part(value) if value.shape == one.shape else value

    return _change_tensors(state_dict, optimizer, shards, part)


def _change_tensors(
    state_dict: Mapping[str, Any],
    optimizer: Optimizer,
    shards: Mapping[Tensor, ShardedParameter],
    change: Callable[[ShardedParameter, Tensor], Tensor],
) -> dict[str, Any]:
    """The state dict with `change` applied to every tensor that belongs to a sharded parameter."""
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))

    def changed(number: int, state: Mapping[str, Any]) -> dict[str, Any]:
        one = shards.get(parameters[number]) if number in parameters else None
        return {
            name: value if one is None or not isinstance(value, Tensor) else change(one, value)
            for name, value in state.items()
        }

    return {**state_dict, "state": {n: changed(n, state) for n, state in state_dict["state"].items()}}


def _gather_parts(part: Tensor, shape: torch.Size) -> Tensor:
    size = elements_per_rank(shape.numel(), dist.get_world_size())
    values = part.new_empty(dist.get_world_size() * size)
    all_gather_single(values, nn.functional.pad(part.detach(), (0, size - part.numel())))
    return values[: shape.numel()].view(shape)
