"""A parameter split evenly over all ranks: which part a rank keeps, how it becomes whole, how its gradient is split.

The elements in logical order, padded to a multiple of the world size, are cut into equal parts; rank r keeps part r. An
all-gather puts the parts together. A reduce-scatter does the opposite for gradients: it sums the whole gradients of all
ranks and leaves part r of the sum on rank r.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.3 (P_os+g+p); Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023), section 3.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch 2.11 has the older names only; 2.13 warns about them.
_all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class ShardedParameter:
    """A parameter of which each rank keeps a part. It is whole only between `launch_gather` and `free`.

    Attributes:
        shard: the parameter that was given, which now holds this rank's part: 1-d, without padding. The last ranks may
            have fewer elements than the others, or none.
        whole: a parameter of the original shape, in the dtype to compute in. The module computes with it, and autograd
            gives it the gradient. Its memory is allocated only while the parameter is whole.
        shape: the original shape.
        users: the modules that compute with it right now.
    """

    def __init__(self, parameter: nn.Parameter, compute_dtype: torch.dtype | None) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        dtype = compute_dtype if compute_dtype and parameter.is_floating_point() else parameter.dtype
        self.shape, self._numel = parameter.shape, parameter.numel()
        self._size = -(-self._numel // world_size)  # of a part with its padding: rounded up
        self._part = slice(min(rank * self._size, self._numel), min((rank + 1) * self._size, self._numel))
        self._padded = torch.empty(world_size * self._size, dtype=dtype, device=parameter.device)
        # .data has its own version counter: otherwise autograd would report that the next all-gather changes a tensor
        # that it has saved.
        values = self._padded.data[: self._numel].view(self.shape)
        self.whole = nn.Parameter(values, requires_grad=dtype.is_floating_point or dtype.is_complex)
        self.users: set[object] = set()
        self._is_gathered = False
        self._work: dist.Work | None = None
        self.free()
        self.shard, parameter.grad = parameter, None
        parameter.data = self.own_part(parameter.detach())

    def own_part(self, values: Tensor) -> Tensor:
        """A copy of this rank's part of a tensor of the original shape, 1-d."""
        return values.reshape(-1)[self._part].clone()

    def launch_gather(self) -> None:
        """Start to make the parameter whole, in the dtype to compute in, unless it is whole or about to be."""
        if not self._is_gathered:
            self._is_gathered = True
            self._padded.untyped_storage().resize_(self._padded.numel() * self._padded.element_size())
            part = self._pad(self.shard.detach().to(self._padded.dtype))
            self._work = _all_gather_single(self._padded.data, part, async_op=True)

    def wait(self) -> None:
        """Wait until the parameter is whole."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def free(self) -> None:
        """Free the memory of the whole parameter. Tensors that autograd saved stay, and the next gather fills them."""
        self.wait()
        self._is_gathered = False
        self._padded.untyped_storage().resize_(0)

    def gather(self, part: Tensor) -> Tensor:
        """A new tensor of the original shape, put together from a tensor of the shard's shape per rank. A collective.

        Args:
            part: this rank's part: the shard, or a tensor like it, such as its momentum.
        """
        values = part.new_empty(self._padded.shape)
        _all_gather_single(values, self._pad(part.detach()))
        return values[: self._numel].view(self.shape)

    def launch_mean(self, gradient: Tensor | None, group: dist.ProcessGroup) -> "PendingPart":
        """Start to average the whole gradients of all ranks, in the shard's own dtype; None counts as zeros.

        It is divided by the world size before it is summed: the sum of many float16 gradients can overflow, their mean
        cannot.
        """
        padded = self._padded.new_zeros(self._padded.shape, dtype=self.shard.dtype)
        if gradient is not None:
            padded[: self._numel].view(self.shape).add_(gradient).div_(dist.get_world_size())
        return PendingPart(padded, self._size, self.shard.numel(), group)

    def add_gradient(self, part: Tensor) -> None:
        """Add this rank's part of a mean gradient to the gradient of the shard."""
        if self.shard.grad is None:
            self.shard.grad = part
        else:
            self.shard.grad.detach().add_(part)

    def _pad(self, part: Tensor) -> Tensor:
        return nn.functional.pad(part, (0, self._size - part.numel()))


class PendingPart:
    """A reduce-scatter under way: this rank's part of a mean gradient.

    Args:
        padded: this rank's whole gradient, 1-d, with padding.
        size: elements of a part, with padding.
        numel: elements of this rank's part, without padding.
        group: the process group of the reduce-scatter.
    """

    def __init__(self, padded: Tensor, size: int, numel: int, group: dist.ProcessGroup) -> None:
        self._part, self._numel = padded.new_empty(size), numel
        self._work: dist.Work | None = _reduce_scatter_single(self._part, padded, group=group, async_op=True)

    def wait(self) -> Tensor:
        """Wait for it; may be called again. Returns the part without its padding."""
        work, self._work = self._work, None  # the work keeps the whole gradient alive
        if work is not None:
            work.wait()
        return self._part[: self._numel]
