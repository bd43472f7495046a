"""The three exchanges that data-parallel training is made of: broadcast values, average gradients, agree on flags.

Tensors always travel as one contiguous copy, their elements in logical order. gloo reduces and broadcasts memory, not
elements: a strided view with gaps is corrupted, and ranks whose strides differ permute each other's values, silently.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


def group_by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors that can share one flat tensor: same dtype, same device; kinds in order of first appearance."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A contiguous 1-d copy of the tensors' elements, one tensor after the other, each in logical order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of `flat` with the shapes of `like`: what `flatten` put together."""
    pieces = torch.split(flat, [tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def broadcast(tensors: Iterable[Tensor], source: int) -> None:
    """Overwrite every rank's tensors in place with those of rank `source`: one collective per dtype and device.

    The bytes travel, so every dtype is allowed and NaN payloads survive.
    """
    for group in group_by_kind(tensors):
        flat = flatten(group)
        dist.broadcast(flat.view(torch.uint8), src=source)
        if dist.get_rank() == source:
            continue
        for tensor, value in zip(group, unflatten(flat, like=group), strict=True):
            # .data has a version counter of its own: buffers change between two forwards whose backwards are still
            # to come, as batch norm's running statistics do, and autograd would take that for an error.
            tensor.data.copy_(value)


@dataclass(frozen=True)
class PendingMean:
    """An all-reduce under way: the mean over all ranks of the gradients of some parameters, in one flat tensor."""

    parameters: Sequence[Tensor]
    flat: Tensor
    work: dist.Work

    def wait(self) -> list[Tensor]:
        """Wait for the all-reduce; the mean gradient of each parameter, in the parameter's shape."""
        self.work.wait()
        return unflatten(self.flat, like=self.parameters)


def launch_mean(parameters: Sequence[Tensor]) -> PendingMean:
    """Start averaging the gradients of parameters of one dtype and device, without waiting.

    A copy travels: the gradients may change meanwhile. A parameter without a gradient on this rank contributes zeros.
    The copy is divided by the world size before it is summed: the sum of many float16 gradients can overflow, their
    mean cannot. Sparse gradients travel as dense ones: ranks need not agree on which rows they have.
    """
    flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters])
    flat.div_(dist.get_world_size())
    work = dist.all_reduce(flat, async_op=True)
    return PendingMean(parameters, flat, work)


def store_gradient(parameter: Tensor, value: Tensor) -> None:
    """Write `value` into the parameter's gradient; if none is there, or a sparse one, into one of the same layout."""
    if parameter.grad is None or parameter.grad.is_sparse:
        parameter.grad = torch.empty_like(parameter, requires_grad=False)
    parameter.grad.detach().copy_(value)


def agree(flags: Sequence[int], device: torch.device) -> list[int]:
    """The largest value that any rank holds of each flag (0 to 255), the same list on every rank."""
    largest = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return [int(flag) for flag in largest.tolist()]
