"""Parameters side by side in memory: one broadcast sends all of them, and none is copied.

**Idea.** Every collective has a fixed cost. One broadcast per parameter pays it hundreds of times in each step. If the
parameters are first copied into one flat tensor, one broadcast is enough, but each step pays two copies of every
parameter. So the parameters move into the flat tensor once: each becomes a view of its part, with the values and the
shape that it had. It stays the same `Parameter` object; only its address changes. From then on the optimizer writes
into the flat tensor when it updates a parameter.

**Exceptions.** Other code may rely on the memory of a parameter: if its elements are not in row-major order
(transposed, channels last), if its storage holds more than the parameter (a flattened RNN), or if it shares its storage
with another parameter. Such a parameter stays in its memory, and is copied for each broadcast.

Source: `parameters_as_bucket_view` of `torch.distributed.optim.ZeroRedundancyOptimizer`; the flat parameters of
DeepSpeed's ZeRO stage 1.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor


class FlatParameters:
    """Parameters of one dtype and device with one owner: each has a place in one flat tensor, which is broadcast.

    Args:
        parameters: at least one, none empty; the same on every rank, where their memory layouts may differ.
        owner: the rank that updates them.
        movable: the parameters that may move into the flat tensor.
    """

    def __init__(self, parameters: Sequence[Tensor], owner: int, movable: AbstractSet[Tensor]) -> None:
        # Kernels want large matrices aligned. In this order there are no gaps, and the address of each parameter in the
        # flat tensor is a multiple of the largest power of two that divides its bytes: it divides all bytes before it.
        self.parameters = sorted(parameters, key=lambda p: p.nbytes & -p.nbytes, reverse=True)
        self.owner = owner
        if _are_adjacent(self.parameters):
            self.flat = self.parameters[0].data.as_strided((sum(p.numel() for p in parameters),), (1,))
        else:
            self.flat = self.parameters[0].data.new_empty(sum(p.numel() for p in parameters))
            self._move(movable)
        self._copied = [(p, place) for p, place in self._places() if p.data_ptr() != place.data_ptr()]

    def launch_broadcast(self) -> dist.Work:
        """Start to send the owner's values, or to receive them, without waiting."""
        if dist.get_rank() == self.owner:
            for parameter, place in self._copied:
                place.copy_(parameter.data)
        as_bytes = self.flat.view(torch.uint8)  # some backends cannot send every dtype
        return cast("dist.Work", dist.broadcast(as_bytes, src=self.owner, async_op=True))

    def finish_broadcast(self, work: dist.Work) -> None:
        """Wait for the values. Autograd then refuses a backward that needs the old ones, as after any step."""
        work.wait()
        if dist.get_rank() != self.owner:
            for parameter, place in self._copied:
                parameter.data.copy_(place)
            torch.autograd.graph.increment_version([p for p in self.parameters if p.grad is not None])

    def _places(self) -> list[tuple[Tensor, Tensor]]:
        """Each parameter with its place: the view of the flat tensor that has the parameter's shape."""
        pieces = torch.split(self.flat, [p.numel() for p in self.parameters])
        return [(p, piece.view(p.shape)) for p, piece in zip(self.parameters, pieces, strict=True)]

    def _move(self, movable: AbstractSet[Tensor]) -> None:
        for parameter, place in self._places():
            if parameter in movable:
                place.copy_(parameter.data)
                parameter.data = place


def movable_parameters(parameters: Collection[Tensor], ours: Iterable[FlatParameters] = ()) -> set[Tensor]:
    """The parameters on whose memory no other code can rely.

    They are contiguous, and each is alone in its storage or lies in the flat tensor of one of `ours`.
    """
    made_here = {_storage(each.flat) for each in ours}
    users = Counter(_storage(p) for p in parameters)
    return {
        p
        for p in parameters
        if p.is_contiguous()
        and (_storage(p) in made_here or (users[_storage(p)] == 1 and p.untyped_storage().nbytes() == p.nbytes))
    }


def memory_of(parameters: Iterable[Tensor]) -> list[object]:
    """The address and layout of each parameter. If the result is different later, other code has moved one."""
    return [(p.data_ptr(), p.stride(), p.dtype, p.device) for p in parameters]


def _are_adjacent(parameters: Sequence[Tensor]) -> bool:
    """Whether each begins, in the same storage, where the one before it ends."""
    ends = accumulate((p.nbytes for p in parameters), initial=parameters[0].data_ptr())
    begins_there = all(p.data_ptr() == end for p, end in zip(parameters, ends, strict=False))
    return begins_there and all(p.is_contiguous() and _storage(p) == _storage(parameters[0]) for p in parameters)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
