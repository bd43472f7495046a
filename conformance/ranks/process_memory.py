"""Weighs optimizer state from outside of the objects that may hold it: by the memory that this process has allocated.

State in a closure, a module, an attribute of a class or behind ctypes weighs as much as in an optimizer.
"""

import ctypes
import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from conformance.ranks.parameters import take_hooks_off


class _Mallinfo2(ctypes.Structure):
    """What glibc says of its heaps (see mallinfo(3))."""

    _fields_ = (
        *((f"_before_{number}", ctypes.c_size_t) for number in range(4)),
        ("hblkhd", ctypes.c_size_t),  # bytes of large allocations
        *((f"_between_{number}", ctypes.c_size_t) for number in range(2)),
        ("uordblks", ctypes.c_size_t),  # bytes of all others
        *((f"_after_{number}", ctypes.c_size_t) for number in range(2)),
    )


def _allocated() -> Callable[[], int] | None:
    """Return a function that counts the bytes which this process has allocated; None if the C library has none."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2

    def allocated() -> int:
        seen = mallinfo2()
        return int(seen.uordblks + seen.hblkhd)

    before, tensor = allocated(), torch.ones(2**18)
    counts = allocated() - before >= tensor.untyped_storage().nbytes()
    return allocated if counts else None  # another allocator may be in use


_WIDER = 4
_TIMES = 3
_POLL_SECONDS = 0.001
_POLLS = 200
_ALIKE = 5
_ALLOCATED = _allocated()
Make = Callable[..., torch.optim.Optimizer]


def process_state_bytes(
    make: Make, parameters: Iterable[torch.Tensor], kind: Any, options: dict[str, Any]
) -> int | None:
    """Return how many bytes more an optimizer of this kind needs than SGD, which has no state; None if unknown.

    Both are made by `make` and step once, with repeated copies of the parameters, so that their state outweighs what
    else is allocated. A sharded optimizer's buffers for collectives are allocated for SGD too; those that it
    allocates but once, for an optimizer before. All are kept to the end, so that none frees what another one has left.
    A thread may free the tensors of a collective late, and so count them for the wrong optimizer. So each is weighed
    several times, and the result is the least that they may differ.
    """
    if _ALLOCATED is None:
        return None
    wide, kept = [one.detach().repeat_interleave(_WIDER, 0) for one in parameters], list[Any]()
    plain, wanted = (torch.optim.SGD, {"lr": 0.1}), (kind, options)
    _, *growths = [
        _growth(lambda copies, cls=cls, given=given: make(copies, cls, **given), wide, kept, _ALLOCATED)
        for cls, given in (plain, *(plain, wanted) * _TIMES)
    ]
    return (min(growths[1::2]) - max(growths[::2])) // _WIDER


def _growth(make: Make, parameters: Iterable[torch.Tensor], kept: list[Any], allocated: Callable[[], int]) -> int:
    """Return how many bytes it takes to make an optimizer of copies of the parameters, and to step once."""
    kept.append(copies := [torch.nn.Parameter(one.clone()) for one in parameters])
    before = _settled(allocated)
    kept.append(optimizer := make(copies))
    torch.autograd.backward([copy.sum() for copy in copies])
    optimizer.step()
    growth = _settled(allocated) - before
    take_hooks_off(copies)
    return growth


def _settled(allocated: Callable[[], int]) -> int:
    """Return the bytes once they stay the same: threads free the tensors of collectives that are over."""
    dist.barrier()
    gc.collect()
    seen = [allocated()]
    while len(seen) < _POLLS and seen[-_ALIKE:] != [seen[-1]] * _ALIKE:
        time.sleep(_POLL_SECONDS)
        seen.append(allocated())
    return seen[-1]
