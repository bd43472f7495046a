"""The whole state of a sharded model and its optimizer: put together from all ranks' parts, or split into parts again.

A rank's model and optimizer hold this rank's parts only. An element-wise optimizer keeps, for each parameter, tensors
of the parameter's shape (momentum, second moment) and perhaps a count of steps. Where the parameter is a rank's part,
so are these tensors. Put together like the parameter, they are the state of an optimizer of the whole model, which can
be loaded without FSDP or with another number of ranks.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023), section 3;
`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` (`full_state_dict`).
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from reference.fsdp.sharded_parameter import ShardedParameter

Shards = Mapping[Tensor, ShardedParameter]
"""A module's sharded parameters by their shards."""


def gather_state(state: Mapping[str, Any], shards: Shards) -> dict[str, Any]:
    """A copy of a state dict in which every shard is replaced by the whole parameter. A collective.

    Args:
        state: a module's `state_dict(keep_vars=True)`.
        shards: the module's sharded parameters.
    """
    whole = {shard: parameter.gather(shard) for shard, parameter in shards.items()}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        return whole[value] if value in whole else value.detach().clone()

    return {key: copied(value) for key, value in state.items()}


def split_state(whole: Mapping[str, Any], state: Mapping[str, Any], shards: Shards) -> dict[str, Any]:
    """A copy of a whole state dict in which every sharded parameter is replaced by this rank's part.

    Args:
        whole: a `state_dict` of the bare module.
        state: the sharded module's `state_dict(keep_vars=True)`.
        shards: the module's sharded parameters.

    Raises:
        ValueError: a parameter has another shape than the module's.
    """
    split = dict(whole)
    for key in whole.keys() & state.keys():
        parameter = shards.get(state[key]) if isinstance(state[key], Tensor) else None
        if parameter is None:
            continue
        if whole[key].shape != parameter.shape:
            raise ValueError(
                f"{key} has the shape {[*whole[key].shape]} in the state dict and {[*parameter.shape]} in the module: "
                "load the state_dict of the same model, unsharded."
            )
        split[key] = parameter.own_part(whole[key])
    return split


def gather_optimizer_state(optimizer: Optimizer, shards: Shards) -> dict[str, Any]:
    """The state dict that the optimizer would have if no parameter were sharded. A collective.

    Args:
        optimizer: an element-wise optimizer of the sharded module's parameters.
        shards: the module's sharded parameters.
    """

    def whole(parameter: ShardedParameter, value: Tensor) -> Tensor:
        return parameter.gather(value) if value.shape == parameter.shard.shape else value

    return _change_tensors(optimizer.state_dict(), optimizer, shards, whole)


def split_optimizer_state(state_dict: Mapping[str, Any], optimizer: Optimizer, shards: Shards) -> dict[str, Any]:
    """A copy of an unsharded optimizer's state dict in which this rank's parts replace the whole tensors."""

    def part(parameter: ShardedParameter, value: Tensor) -> Tensor:
        return parameter.own_part(value) if value.shape == parameter.shape else value

    return _change_tensors(state_dict, optimizer, shards, part)


def _change_tensors(
    state_dict: Mapping[str, Any],
    optimizer: Optimizer,
    shards: Shards,
    change: Callable[[ShardedParameter, Tensor], Tensor],
) -> dict[str, Any]:
    """The state dict with `change` applied to every tensor that belongs to a sharded parameter."""
    shard_of = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))

    def changed(number: int, state: Mapping[str, Any]) -> dict[str, Any]:
        parameter = shards.get(shard_of[number]) if number in shard_of else None
        return {
            name: value if parameter is None or not isinstance(value, Tensor) else change(parameter, value)
            for name, value in state.items()
        }

    return {**state_dict, "state": {n: changed(n, state) for n, state in state_dict["state"].items()}}
