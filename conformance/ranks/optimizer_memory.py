"""Measures how much optimizer state this process holds, wherever a sharded optimizer keeps it."""

import gc
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

_CLOSED = (torch.Tensor, torch.nn.Module, type, ModuleType, FrameType)  # not entered


def state_bytes(optimizer: Any) -> int | None:
    """Return the bytes of state in all torch optimizers that can be reached from `optimizer`, itself included.

    If they have no state, optimizers that train the same parameters count too, wherever they are kept, such as in a
    global table. Step counters do not count, and memory that several tensors share counts once. None if there is no
    torch optimizer.
    """
    found = list(_optimizers(optimizer))
    if not _state_of(found):
        found += _elsewhere(optimizer)
    return bytes_of_state(found)


def bytes_of_state(optimizers: Iterable[torch.optim.Optimizer]) -> int | None:
    """Return the bytes of state in these optimizers, without step counters; None if there are none."""
    found = list(optimizers)
    return _memory(_state_of(found)) if found else None


def optimizers_alive() -> list[torch.optim.Optimizer]:
    """Return all torch optimizers of this process that are not garbage."""
    gc.collect()  # garbage of an earlier optimizer is not state that is held
    # By `type`: a weak proxy whose object is gone raises when `isinstance` asks for its class.
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def _state_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [
        part
        for inner in optimizers
        for state in (inner.state.values() if hasattr(inner, "state") else ())  # not without `Optimizer.__init__`
        if isinstance(state, dict)
        for key, tensor in state.items()
        if key != "step" and isinstance(tensor, torch.Tensor)
        for part in stored(tensor)
    ]


def _memory(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of memory under these tensors; some may be views of one buffer, or the same tensor."""
    taken = end = 0
    for first, last in sorted(map(_place, tensors)):
        taken, end = taken + max(0, last - max(first, end)), max(last, end)
    return taken


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where the numbers of a tensor begin and end; an expanded tensor has fewer than elements."""
    first, storage = tensor.data_ptr(), tensor.untyped_storage()
    return first, min(first + tensor.numel() * tensor.element_size(), storage.data_ptr() + storage.nbytes())


def stored(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors whose memory on this rank holds the numbers of `tensor`.

    They are the local part of a distributed tensor, and the tensors that a wrapper subclass holds, as quantised tensors
    do: the subclass itself has no memory. Any other tensor is in its own memory.
    """
    part = local_part(tensor)
    try:
        part.untyped_storage().data_ptr()
    except RuntimeError:
        held = (one for one in vars(part).values() if isinstance(one, torch.Tensor))
        yield from (inner for one in held for inner in stored(one))
    else:
        yield part


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a distributed tensor (`DTensor`); any other tensor as it is."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _optimizers(outer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the torch optimizers that can be reached from this one: by attributes, slots, containers and closures."""
    ahead, seen = [outer], set[int]()
    while ahead:
        thing = ahead.pop()
        if id(thing) in seen or isinstance(thing, _CLOSED):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.optim.Optimizer):
            yield thing
        ahead += (thing.__closure__ or ()) if isinstance(thing, FunctionType) else gc.get_referents(thing)


def _elsewhere(outer: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers, anywhere in the process, that train memory of this one's parameters."""
    trained = _trained(outer)
    return [one for one in optimizers_alive() if one is not outer and trained & _trained(one)]


def _trained(optimizer: Any) -> set[int]:
    """Return the addresses of the storages that hold an optimizer's parameters."""
    params = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    parts = (part for p in params if isinstance(p, torch.Tensor) for part in stored(p))
    return {part.untyped_storage().data_ptr() for part in parts} - {0}
