"""A parameter split evenly over all ranks: what each keeps, how it becomes whole, how its gradient is scattered.

The elements in logical order, padded to a multiple of the world size, are cut into equal parts; rank r keeps part r. An
all-gather puts the parts together; a reduce-scatter, its counterpart, sums everybody's whole gradient and leaves part r
of the sum on rank r.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.3 (P_os+g+p); Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023), section 3.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch 2.11 has the older names only, and 2.13 warns of them.
all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def part_of(numel: int, rank: int, world_size: int) -> slice:
    """The elements that a rank keeps: as many on each, but the last ranks may have fewer or none."""
    size = elements_per_rank(numel, world_size)
    return slice(min(rank * size, numel), min((rank + 1) * size, numel))


def elements_per_rank(numel: int, world_size: int) -> int:
    """The size of a part, padding included: `numel / world_size`, rounded up."""
    return -(-numel // world_size)


class ShardedParameter:
    """A parameter whose values live on all ranks together; it is whole only between a gathering and `free`.

    Attributes:
        shard: the parameter that was given, which now holds this rank's part, 1-d, not padded.
        whole: a parameter of the original shape, in the dtype to compute in: what the module computes with and what
            autograd gives the gradient to. Its memory is there only while it is gathered.
        shape: the original shape.
        users: those who compute with it right now.
    """

    def __init__(self, parameter: nn.Parameter, compute_dtype: torch.dtype | None) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        dtype = compute_dtype if compute_dtype and parameter.is_floating_point() else parameter.dtype
        self.shape, self._numel = parameter.shape, parameter.numel()
        self._size, self._part = elements_per_rank(self._numel, world_size), part_of(self._numel, rank, world_size)
        self._padded = torch.empty(world_size * self._size, dtype=dtype, device=parameter.device)
        # .data: a version counter of its own, or autograd would take the next gathering for a change of what it saved.
        values = self._padded.data[: self._numel].view(self.shape)
        self.whole = nn.Parameter(values, requires_grad=dtype.is_floating_point or dtype.is_complex)
        self.users: set[object] = set()
        self._gathered = False
        self._work: dist.Work | None = None
        self.free()
        self.shard, parameter.grad = parameter, None
        parameter.data = self.own_part(parameter.detach())

    def own_part(self, values: Tensor) -> Tensor:
        """A copy of this rank's part of a tensor of the original shape, 1-d."""
        return values.reshape(-1)[self._part].clone()

    def launch_gather(self) -> None:
        """Start to put the parts together, in the dtype to compute in, unless that has been done."""
        if not self._gathered:
            self._gathered = True
            self._padded.untyped_storage().resize_(self._padded.numel() * self._padded.element_size())
            own = self._padded_part(self._padded.dtype)
            self._work = all_gather_single(self._padded.data, own, async_op=True)

    def wait(self) -> None:
        """Wait until the parameter is whole."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def free(self) -> None:
        """Give the memory of the whole parameter back; what autograd has saved of it stays, and fills up with it."""
        self.wait()
        self._gathered = False
        self._padded.untyped_storage().resize_(0)

    def gather_values(self) -> Tensor:
        """The whole parameter in the shard's own dtype, as a new tensor. A collective."""
        values = self._padded.new_empty(self._padded.shape, dtype=self.shard.dtype)
        all_gather_single(values, self._padded_part(self.shard.dtype))
        return values[: self._numel].view(self.shape)

    def launch_mean(self, gradient: Tensor | None, group: dist.ProcessGroup) -> "PendingPart":
        """Start to average everybody's whole gradient, in the shard's own dtype; None counts as zeros.

        It is divided by the world size before it is summed: the sum of many float16 gradients can overflow, their mean
        cannot.
        """
        everything = self._padded.new_zeros(self._padded.shape, dtype=self.shard.dtype)
        if gradient is not None:
            everything[: self._numel].view(self.shape).add_(gradient).div_(dist.get_world_size())
        return PendingPart(everything, self._size, self.shard.numel(), group)

    def add_gradient(self, part: Tensor) -> None:
        """Add to the gradient of the shard."""
        if self.shard.grad is None:
            self.shard.grad = part
        else:
            self.shard.grad.detach().add_(part)

    def _padded_part(self, dtype: torch.dtype) -> Tensor:
        part = self.shard.detach().to(dtype)
        return nn.functional.pad(part, (0, self._size - part.numel()))


class PendingPart:
    """A reduce-scatter under way: this rank's part of a mean gradient."""

    def __init__(self, everything: Tensor, size: int, numel: int, group: dist.ProcessGroup) -> None:
        self._part, self._numel = everything.new_empty(size), numel
        self._work: dist.Work | None = reduce_scatter_single(self._part, everything, group=group, async_op=True)

    def wait(self) -> Tensor:
        """Wait for it, once or more often; the part without its padding."""
        work, self._work = self._work, None  # which keeps the whole gradient alive
        if work is not None:
            work.wait()
        return self._part[: self._numel]


def gather_state(state: Mapping[str, Any], shards: Mapping[Tensor, ShardedParameter]) -> dict[str, Any]:
    """A copy of a state dict in which every shard is whole. A collective.

    Args:
        state: a module's `state_dict(keep_vars=True)`.
        shards: its sharded parameters by their shards.
    """
    whole = {shard: one.gather_values() for shard, one in shards.items()}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        return whole[value] if value in whole else value.detach().clone()

    return {key: copied(value) for key, value in state.items()}


def split_state(
    whole: Mapping[str, Any], state: Mapping[str, Any], shards: Mapping[Tensor, ShardedParameter]
) -> dict[str, Any]:
    """A state dict with this rank's parts, where `whole` has whole parameters.

    Args:
        whole: a `state_dict` of the bare module.
        state: the sharded module's `state_dict(keep_vars=True)`.
        shards: its sharded parameters by their shards.

    Raises:
        ValueError: a parameter has another shape than the module's.
    """
    split = dict(whole)
    for key in whole.keys() & state.keys():
        one = shards.get(state[key]) if isinstance(state[key], Tensor) else None
        if one is not None and whole[key].shape != one.shape:
            raise ValueError(
                f"{key} has the shape {[*whole[key].shape]} in the state dict and {[*one.shape]} in the module: "
                "load the state_dict of the same model, unsharded."
            )
        split[key] = whole[key] if one is None else one.own_part(whole[key])
    return split
