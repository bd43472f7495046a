"""Measures how much optimizer state this process holds, whatever a sharded optimizer looks like inside."""

import gc
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

_CLOSED = (torch.Tensor, torch.nn.Module, type, ModuleType, FrameType)  # not entered


def state_bytes(optimizer: Any) -> int | None:
    """Return the bytes of state in every torch optimizer reachable from `optimizer`, itself included.

    Counters of steps are left out; memory that several tensors share counts once. None if no torch optimizer is found.
    """
    found = list(_optimizers(optimizer))
    if not found:
        return None
    kept = [
        local_part(tensor)
        for inner in found
        for state in inner.state.values()
        if isinstance(state, dict)
        for key, tensor in state.items()
        if key != "step" and isinstance(tensor, torch.Tensor)
    ]
    return _memory(kept)


def _memory(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of memory that tensors take; state may be views of one buffer, or be listed twice."""
    taken = end = 0
    for first, last in sorted((one.data_ptr(), one.data_ptr() + one.numel() * one.element_size()) for one in tensors):
        taken, end = taken + max(0, last - max(first, end)), max(last, end)
    return taken


def local_part(tensor: Any) -> torch.Tensor:
    """Return what this rank has of a distributed tensor (`DTensor`); any other tensor as it is."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _optimizers(outer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield torch optimizers reachable from this one, whatever holds them: attributes, slots, containers, closures."""
    ahead, seen = [outer], set[int]()
    while ahead:
        thing = ahead.pop()
        if id(thing) in seen or isinstance(thing, _CLOSED):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.optim.Optimizer):
            yield thing
        ahead += (thing.__closure__ or ()) if isinstance(thing, FunctionType) else gc.get_referents(thing)
