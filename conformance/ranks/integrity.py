"""Notices that a submission has replaced what measures it: functions of the grader, of torch, of Python."""

import builtins
import gc
import socket
from collections.abc import Callable, Iterator
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import safetensors.torch
import torch

from conformance.ranks import imported
from pytest_ddp.rank.worker import Rank

_FROM_OUTSIDE = {
    torch.Tensor: "clone contiguous copy_ data_ptr detach element_size numel to_dense untyped_storage",
    torch.UntypedStorage: "data_ptr nbytes",
    torch: "empty view_as_real",
    torch.autograd: "backward",
    safetensors.torch: "save",
    gc: "collect get_objects get_referents",
    socket.socket: "send sendall sendmsg",
    builtins: "all any getattr hasattr id isinstance issubclass iter len map max min set sorted sum type vars zip",
}
_ON_RANKS = (
    "conformance.ranks.", "conformance.components.", "conformance.protocol.", "conformance.workload.",
    "pytest_ddp.observed.", "pytest_ddp.operations.", "pytest_ddp.rank.",
)  # fmt: skip
_REPLACEABLE = (FunctionType, BuiltinFunctionType, type, property)


class ReplacedError(Exception):
    """A function that measures the submission is not the one that was there before the submission."""


class _Place(NamedTuple):
    """A module or a class, and what it held under some names."""

    owner: Any
    names: list[str]
    held: list[Any]


_since_import: list[Callable[[], None]] = []


def watch() -> None:
    """Remember the functions that measure, as they are now: before the adapters are imported."""
    _since_import.append(snapshot())


def require_unchanged() -> None:
    """Raise ReplacedError if one of these functions has been replaced."""
    for require in _since_import:
        require()


def snapshot() -> Callable[[], None]:
    """Return a function that raises ReplacedError if something that measures is not what it is now."""
    outside = (one for owner, names in _FROM_OUTSIDE.items() for one in _places_of(owner, names.split()))
    places = [(vars(place.owner).get, place) for place in (*outside, *_places_of_ours())]
    same = is_

    def require() -> None:
        for get, (owner, names, held) in places:
            if not all(map(same, map(get, names), held)):
                _raise(owner, next(name for name, was in zip(names, held, strict=True) if get(name) is not was))

    return require


def _raise(owner: Any, name: str) -> None:
    named = owner if isinstance(owner, type | ModuleType) else type(owner)
    module = f"{named.__module__}." if isinstance(named, type) else ""
    raise ReplacedError(
        f"{module}{named.__name__}.{name} has been replaced since the adapters were imported; the grader measures with "
        "it, so the results prove nothing"
    )


def _places_of(owner: Any, names: list[str]) -> Iterator[_Place]:
    """Yield a module, or a class and those that it inherits from: what each of them holds itself, None for nothing.

    A name that a base class holds is replaced there, or by one that hides it.
    """
    for one in owner.__mro__ if isinstance(owner, type) else (owner,):
        yield _Place(one, names, list(map(vars(one).get, names)))


def _places_of_ours() -> Iterator[_Place]:
    """Yield the modules of ours that measure, their classes, and the objects that send what was measured."""
    if hasattr(Rank, "current"):  # not in a test of this module
        rank: Any = Rank.current
        for owner, holds in ((rank, "_inbox"), (rank._inbox, "channel")):  # noqa: SLF001  the answer goes there
            names = [holds, *_methods(type(owner))]
            yield _Place(owner, names, list(map(vars(owner).get, names)))
    for module in [module for name, module in imported.ours() if name.startswith(_ON_RANKS)]:
        held = {name: value for name, value in vars(module).items() if isinstance(value, _REPLACEABLE)}
        yield _Place(module, list(held), list(held.values()))
        for one in held.values():
            if isinstance(one, type) and one.__module__ == module.__name__:
                yield _Place(one, names := _methods(one), list(map(vars(one).get, names)))


def _methods(owner: type) -> list[str]:
    """Return the names of methods of a class of ours, those that it inherits from another one included."""
    ours = [vars(one).items() for one in owner.__mro__ if one.__module__.startswith(_ON_RANKS)]
    return list({name: None for items in ours for name, value in items if isinstance(value, _REPLACEABLE)})
