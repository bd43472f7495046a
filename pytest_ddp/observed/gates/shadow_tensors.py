"""Keeps the results of an operation away from its caller's tensors, which hold poison until the results land."""

from typing import Any

import torch

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call import Call


class ShadowTensors:
    """The tensors of the caller that a call fills, and copies that it fills in their place.

    Attributes:
        call: the call, with the copies for arguments.
    """

    def __init__(self, call: Call, entry: Entry) -> None:
        written = _written(call, entry)
        storages = {_storage(tensor) for tensor in written if _is_strided(tensor)}
        also_read = [tensor for tensor in call.inputs if _is_strided(tensor) and _storage(tensor) in storages]
        copies = {id(tensor): _copy(tensor) for tensor in (*written, *also_read)}
        self._pairs = [(tensor, copies[id(tensor)]) for tensor in written]
        self.call = Call(
            call.group,
            call.ranks,
            call.real,
            method=call.method,
            args=_replaced(call.args, copies),
            keywords={name: _replaced(value, copies) for name, value in call.keywords.items()},
        )

    @property
    def devices(self) -> set[torch.device]:
        """Where the tensors are."""
        return {tensor.device for tensor, _ in self._pairs}

    def poison(self) -> None:
        """Fill the caller's tensors with what no program can take for a result."""
        for tensor, _ in self._pairs:
            with torch.no_grad():
                _poison(tensor)

    def land(self) -> None:
        """Give the caller the results."""
        for tensor, filled in self._pairs:
            with torch.no_grad():
                (tensor.data if _is_strided(tensor) else tensor).copy_(filled)
            if filled.is_cuda:
                filled.record_stream(torch.cuda.current_stream(filled.device))

    def of_caller(self, results: Any) -> Any:
        """Return what an operation says are its results, with the caller's tensors instead of the copies."""
        return _replaced(results, {id(filled): tensor for tensor, filled in self._pairs})


def _written(call: Call, entry: Entry) -> list[torch.Tensor]:
    """Return the tensors of this rank that a call will write to: the root of a broadcast only reads its own.

    A reduce writes on every rank: gloo adds up on the way to the root, in the tensors of those that it passes.
    """
    reads_only = entry.op == "broadcast" and entry.root == call.ranks[call.real.rank()]
    return [] if reads_only else call.outputs


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides: backends refuse some."""
    with torch.no_grad():
        if not _is_strided(tensor):
            return tensor.clone()
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)


def _poison(tensor: torch.Tensor) -> None:
    """Fill with NaN, or the integer that is least likely a result; booleans are inverted."""
    target = tensor.data if _is_strided(tensor) else tensor._values()  # noqa: SLF001  no public way without coalescing
    if tensor.dtype == torch.bool:
        target.logical_not_()
    elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        target.fill_(torch.nan)
    else:
        limits = torch.iinfo(tensor.dtype)
        target.fill_(limits.min or limits.max)


def _replaced(found: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """Return nested lists with tensors in place of others, which are told by their identity."""
    if isinstance(found, torch.Tensor):
        return tensors.get(id(found), found)
    return type(found)(_replaced(part, tensors) for part in found) if isinstance(found, list | tuple) else found
