"""Lets a call fill copies, and keeps poison in the caller's tensors until the results are written back."""

from dataclasses import replace
from typing import Any

import torch

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.torch_internals import sparse_values


class ShadowTensors:
    """Copies of the caller's tensors; `call` is the caller's call with the copies as its arguments.

    If it `spoils`, floating-point results are NaN in the copies and in the caller's tensors.
    """

    def __init__(self, call: Call, entry: Entry, *, spoils: bool = False) -> None:
        # The root of a broadcast only reads. In a reduce every rank writes: gloo keeps partial sums in its tensors.
        reads_only = entry.op == "broadcast" and entry.root == call.ranks[call.real.rank()]
        written = [] if reads_only else call.outputs
        storages = {_storage(tensor) for tensor in written if _is_strided(tensor)}
        also_read = [tensor for tensor in call.inputs if _is_strided(tensor) and _storage(tensor) in storages]
        copies = {id(tensor): _copy(tensor) for tensor in (*written, *also_read)}
        self._pairs = [(tensor, copies[id(tensor)]) for tensor in written]
        keywords = {name: _replaced(value, copies) for name, value in call.keywords.items()}
        self.call = replace(call, args=_replaced(call.args, copies), keywords=keywords)
        self._spoiled = [filled for _, filled in self._pairs if spoils and filled.dtype.is_floating_point]
        self._spoil()  # what an operation in place takes

    @property
    def devices(self) -> set[torch.device]:
        """The devices of the tensors."""
        return {tensor.device for tensor, _ in self._pairs}

    def poison(self) -> None:
        """Fill the caller's tensors with poison: NaN, the least integer, inverted booleans."""
        for tensor, _ in self._pairs:
            with torch.no_grad():
                _poison(tensor)

    def _spoil(self) -> None:
        for filled in self._spoiled:
            with torch.no_grad():
                _poison(filled)

    def write_back(self) -> None:
        """Copy the results to the caller's tensors."""
        self._spoil()
        for tensor, filled in self._pairs:
            with torch.no_grad():
                (tensor.data if _is_strided(tensor) else tensor).copy_(filled)
            if filled.is_cuda:
                filled.record_stream(torch.cuda.current_stream(filled.device))

    def with_caller_tensors(self, results: Any) -> Any:
        """Return the results of an operation with the caller's tensors instead of the copies."""
        return _replaced(results, {id(filled): tensor for tensor, filled in self._pairs})


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, so that a backend accepts it if it accepts the original."""
    with torch.no_grad():
        if not _is_strided(tensor):
            return tensor.clone()
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)


def _poison(tensor: torch.Tensor) -> None:
    target = tensor.data if _is_strided(tensor) else sparse_values(tensor)
    if tensor.dtype == torch.bool:
        target.logical_not_()
    elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        target.fill_(torch.nan)
    else:
        limits = torch.iinfo(tensor.dtype)
        target.fill_(limits.min or limits.max)  # 0 is a likely result


def _replaced(value: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """Return a nested list or tuple with each tensor replaced by `tensors[id(tensor)]`, if there is one."""
    if isinstance(value, torch.Tensor):
        return tensors.get(id(value), value)
    return type(value)(_replaced(part, tensors) for part in value) if isinstance(value, list | tuple) else value
