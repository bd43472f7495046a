"""A gradient bucket: the gradients of several parameters in one flat tensor, which travels as it is.

A bucket that is filled with copies of gradients and copied back holds every gradient twice and moves it four times.
Here the flat tensor is where gradients live: a gradient is moved in once, divided on the way, and when the all-reduce
is over `parameter.grad` is a view of the flat tensor.

From the moment it is moved in until it is averaged, a gradient belongs to the bucket alone and `parameter.grad` is
None. Whatever autograd stores meanwhile thus cannot write into memory that is travelling, nor can anything read it.

Source: `torch.nn.parallel.DistributedDataParallel` (`gradient_as_bucket_view`).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.partition import fill_buckets

BYTES_PER_MB = 1024 * 1024  # as in torch's bucket_cap_mb


class Bucket:
    """Room for the gradients of parameters of one dtype and device.

    Args:
        parameters: whose gradients it holds.

    Attributes:
        flat: 1-d, as many elements as the parameters have together.
        views: each parameter's part of `flat`, in the shape and memory layout that autograd gives its gradient.
        moved: the parameters whose gradients are here.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        first, sizes = parameters[0], [p.numel() for p in parameters]
        self.parameters = parameters
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = zip(parameters, torch.split(self.flat, sizes), strict=True)
        self.views = {p: piece.as_strided(p.shape, _strides_of_gradient(p)) for p, piece in pieces}
        self.moved: set[Tensor] = set()
        self._share = 1 / dist.get_world_size()

    @property
    def full(self) -> bool:
        """Whether every gradient is here."""
        return len(self.moved) == len(self.parameters)

    def move_in(self, parameter: Tensor) -> None:
        """Take the parameter's gradient, divided by the world size; one that comes after another is added to it.

        Dividing before the sum keeps float16 in range: the sum of many gradients can overflow, their mean cannot. A
        sparse gradient becomes dense: ranks need not agree on which rows they have.
        """
        gradient, parameter.grad = parameter.grad, None
        view = self.views[parameter]
        if gradient is None:
            view.zero_()
            return
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if parameter in self.moved:
            view.add_(gradient.detach(), alpha=self._share)
        elif gradient is view:  # added up in here, in earlier backwards too
            view.mul_(self._share)
        else:
            torch.mul(gradient.detach(), self._share, out=view)
        self.moved.add(parameter)

    def launch(self) -> dist.Work:
        """Start the all-reduce: with what backwards that were not synchronized have left, or zero, where one lacks."""
        for parameter in self.parameters:
            if parameter not in self.moved:
                self.move_in(parameter)
        work: dist.Work = dist.all_reduce(self.flat, async_op=True)
        return work

    def hand_back(self, used: dict[Tensor, bool]) -> None:
        """Give the parameters that any rank used their mean gradients: views of `flat`."""
        for parameter, view in self.views.items():
            if used[parameter]:
                later, parameter.grad = parameter.grad, view
                if later is not None:  # from a backward that has begun after this one
                    view.add_(later.detach())


def _strides_of_gradient(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's own strides if it is dense; else those of a dense tensor most like it."""
    return torch.empty_like(parameter, device="meta").stride()


def make_buckets(parameters: Sequence[Tensor], size_mb: float | None, first_size_mb: float | None) -> list[Bucket]:
    """Put parameters into buckets, in order, those of each dtype and device into buckets of their own.

    Args:
        parameters: in the order in which their gradients are expected.
        size_mb: most that a bucket holds, in units of `BYTES_PER_MB`; None for no limit.
        first_size_mb: the same for the first bucket of each dtype and device; None for `size_mb`.

    Returns:
        The buckets in the order in which they are expected to become full.
    """
    sizes = [p.numel() * p.element_size() for p in parameters]
    kinds = [(p.dtype, p.device) for p in parameters]
    capacities = [None if mb is None else mb * BYTES_PER_MB for mb in (size_mb, first_size_mb)]
    return [Bucket([parameters[i] for i in bucket]) for bucket in fill_buckets(sizes, kinds, *capacities)]
