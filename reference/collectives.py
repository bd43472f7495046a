"""Broadcast of many tensors at once, and the flat tensors in which they are sent.

A collective has a fixed cost per call, so tensors of one dtype and device are copied into one flat tensor and sent
together. The flat tensor is contiguous and has each tensor's elements in logical order. gloo sends memory, not
elements: it corrupts a strided view with gaps, and ranks whose strides differ get each other's elements permuted,
without any error.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def group_by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors that can share one flat tensor: one list per dtype and device, in order of first appearance."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A contiguous 1-d copy of the tensors' elements, one tensor after the other, each in logical order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of `flat`, a result of `flatten`, with the shapes of `like`."""
    pieces = torch.split(flat, [tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def broadcast(tensors: Iterable[Tensor], source: int) -> None:
    """Overwrite every rank's tensors in place with those of rank `source`: one collective per dtype and device.

    The tensors are sent as bytes, so every dtype is allowed and the bits of NaNs are kept.
    """
    for group in group_by_kind(tensors):
        flat = flatten(group)
        dist.broadcast(flat.view(torch.uint8), src=source)
        if dist.get_rank() == source:
            continue
        for tensor, value in zip(group, unflatten(flat, like=group), strict=True):
            # .data has its own version counter. Buffers, such as batch norm's running statistics, change between two
            # forwards whose backwards are still to come, and autograd would report that as an error.
            tensor.data.copy_(value)
