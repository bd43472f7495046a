"""Parameters side by side in memory: one broadcast sends many of them, and none is copied.

A collective has a fixed cost, which a broadcast per parameter pays hundreds of times. Copying the parameters into one
flat tensor before the broadcast, and out of it after, costs two more passes over memory in every step. So they are
moved, once: each becomes a view of a flat tensor, with the values and the shape it had. Only its address changes.

A parameter stays where it is, and is copied for each broadcast, if others might rely on its memory: if its elements
lie in another order (transposed, channels last), or its storage holds more (a flattened RNN) or is shared.

Source: `parameters_as_bucket_view` of `torch.distributed.optim.ZeroRedundancyOptimizer`; the flat parameters of
DeepSpeed's ZeRO stage 1.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor


class FlatParameters:
    """Parameters of one dtype and device, each with its place in one flat tensor, broadcast by the rank that owns them.

    Args:
        parameters: at least one, none empty; the same on every rank.
        owner: the rank whose values count.
        movable: those of which the memory may change.
    """

    def __init__(self, parameters: Sequence[Tensor], owner: int, movable: AbstractSet[Tensor]) -> None:
        # A tensor begins at a multiple of the largest power of two that divides its bytes, without gaps between them:
        # all that come before it are divisible by as much. Kernels want large matrices aligned.
        self.parameters = sorted(parameters, key=lambda p: p.nbytes & -p.nbytes, reverse=True)
        self.owner = owner
        if _are_adjacent(self.parameters):
            self.flat = self.parameters[0].data.as_strided((sum(p.numel() for p in parameters),), (1,))
        else:
            self.flat = self.parameters[0].data.new_empty(sum(p.numel() for p in parameters))
            self._move(movable)

    def launch_broadcast(self) -> dist.Work:
        """Start sending the owner's values, or receiving them, without waiting."""
        if dist.get_rank() == self.owner:
            for parameter, place in self._copied():
                place.copy_(parameter.data)
        as_bytes = self.flat.view(torch.uint8)  # broadcasts of every dtype look alike
        return cast("dist.Work", dist.broadcast(as_bytes, src=self.owner, async_op=True))

    def finish_broadcast(self, work: dist.Work) -> None:
        """Wait for the values; backward through a graph that saw others is refused, as after any optimizer's step."""
        work.wait()
        if dist.get_rank() != self.owner:
            for parameter, place in self._copied():
                parameter.data.copy_(place)
            torch.autograd.graph.increment_version([p for p in self.parameters if p.grad is not None])

    def _places(self) -> list[tuple[Tensor, Tensor]]:
        """Each parameter with the view of the flat tensor that is its place."""
        pieces = torch.split(self.flat, [p.numel() for p in self.parameters])
        return [(p, piece.view(p.shape)) for p, piece in zip(self.parameters, pieces, strict=True)]

    def _copied(self) -> list[tuple[Tensor, Tensor]]:
        """The parameters that lie elsewhere than in their place."""
        return [(p, place) for p, place in self._places() if p.data_ptr() != place.data_ptr()]

    def _move(self, movable: AbstractSet[Tensor]) -> None:
        for parameter, place in self._places():
            if parameter in movable:
                place.copy_(parameter.data)
                parameter.data = place


def movable_parameters(parameters: Sequence[Tensor], ours: Iterable[FlatParameters] = ()) -> set[Tensor]:
    """Those whose memory nobody else can rely on: contiguous, and alone in their storage or in one of `ours`."""
    made_here = {_storage(each.flat) for each in ours}
    users = Counter(_storage(p) for p in parameters)
    return {
        p
        for p in parameters
        if p.is_contiguous()
        and (_storage(p) in made_here or (users[_storage(p)] == 1 and p.untyped_storage().nbytes() == p.nbytes))
    }


def memory_of(parameters: Iterable[Tensor]) -> list[object]:
    """Where and how each parameter lies in memory; another answer later means that somebody moved it."""
    return [(p.data_ptr(), p.stride(), p.dtype, p.device) for p in parameters]


def _are_adjacent(parameters: Sequence[Tensor]) -> bool:
    """Whether each begins, in the same storage, where the one before it ends."""
    ends = accumulate((p.nbytes for p in parameters), initial=parameters[0].data_ptr())
    begins_there = all(p.data_ptr() == end for p, end in zip(parameters, ends, strict=False))
    return begins_there and all(p.is_contiguous() and _storage(p) == _storage(parameters[0]) for p in parameters)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
