"""Measures how much optimizer state this process holds, whatever a sharded optimizer looks like inside."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_CONTAINERS = (list, tuple, set, frozenset)


def state_bytes(optimizer: Any) -> int | None:
    """Return the bytes of state in every torch optimizer reachable from `optimizer`, itself included.

    Counters of steps are left out; memory that several tensors share counts once. None if no torch optimizer is found.
    """
    found = list(_optimizers(optimizer, set()))
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


def _optimizers(thing: Any, seen: set[int]) -> Iterator[torch.optim.Optimizer]:
    """Yield torch optimizers reachable through attributes and containers; models and tensors are not entered."""
    if id(thing) in seen or isinstance(thing, torch.Tensor | torch.nn.Module | type | str | bytes):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.optim.Optimizer):
        yield thing
    parts: Any = ()
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, _CONTAINERS):
        parts = thing
    elif hasattr(thing, "__dict__"):
        parts = vars(thing).values()
    for part in list(parts):
        yield from _optimizers(part, seen)
