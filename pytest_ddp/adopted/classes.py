"""Decides at collection, in the controller and on ranks, which classes are adopted and what their tests ask for."""

import unittest
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest

from pytest_ddp.adopted.harness_internals import (
    DECIDES,
    PROCESSES,
    REPLACED,
    THREADS,
    WORKERS,
    harness_of,
    overridden,
    worker_count,
    worker_device,
)
from pytest_ddp.errors import LackError, UsageError
from pytest_ddp.items import OPTIONS_OF_CLASS
from pytest_ddp.pytest_internals import parameters

# The attributes of DeepSpeed's `DistributedTest`, and the options of `@distributed` that they stand for.
_ATTRIBUTES = {"backend": "backend", "exec_timeout": "timeout", "init_distributed": "group"}


def adopt(node: pytest.Class, names: Collection[str]) -> None:
    """Let the tests of a class run on ranks, if the class or one of its bases has one of these names."""
    cls = node.obj
    if not any(base.__name__ in names for base in cls.__mro__) or _plays_all_ranks(cls):
        return
    node.add_marker(pytest.mark.distributed)
    options: Callable[[pytest.Item], Mapping[str, Any]] = partial(_options, cls)
    node.stash[OPTIONS_OF_CLASS] = options
    if getattr(cls, "is_dist_test", False):
        cls.is_dist_test = False  # otherwise DeepSpeed's conftest file starts processes for the test


def _options(cls: type, item: pytest.Item) -> Mapping[str, Any]:
    """Return what a test asks for, as options of `@distributed`; raise UsageError if the class cannot be adopted."""
    harness = harness_of(cls)
    read: Callable[[Any, pytest.Item], Mapping[str, Any]] = _options_of_attributes
    if harness is not None:
        _check_overrides(cls, harness)
        read = _OPTIONS[harness.__name__]
    try:
        return read(cls, item)
    except unittest.SkipTest as skip:
        raise LackError(str(skip)) from None
    except (UsageError, LackError):
        raise
    except Exception as error:  # the class's own code says how many ranks it needs
        raise UsageError(f"the world size of {cls.__name__} cannot be read: {type(error).__name__}: {error}") from error


def _plays_all_ranks(cls: type) -> bool:
    """Whether a class runs all ranks in one process, as torch's `LocalDTensorTestBase` does; it is then not adopted."""
    harness = harness_of(cls)
    return harness is not None and bool(overridden(cls, harness, DECIDES[harness.__name__]))


def _check_overrides(cls: type, harness: type) -> None:
    if own := overridden(cls, harness, *REPLACED[harness.__name__]):
        raise UsageError(
            f"{cls.__name__} cannot be adopted: it overrides {' and '.join(own)} of {harness.__name__}, which start "
            "processes or wait for them, and ranks call no such method; write the test with @distributed(group=False)"
        )


def _options_of_processes(cls: Any, item: pytest.Item) -> Mapping[str, Any]:
    return {"world_size": _positive(int(cls(item.name).world_size), cls), "group": False}


def _options_of_threads(cls: Any, item: pytest.Item) -> Mapping[str, Any]:
    return {"world_size": _positive(int(cls(item.name).world_size), cls)}


def _options_of_workers(cls: Any, _: pytest.Item) -> Mapping[str, Any]:
    device = {"device": "cuda"} if worker_device(cls) == "cuda" else {}
    return {"world_size": _positive(worker_count(cls), cls), "group": False, **device}


def _positive(size: int, cls: type) -> int:
    if size == 0:
        raise LackError(f"world_size of {cls.__name__} is 0 on this machine, where torch finds no accelerator")
    return size


_OPTIONS: dict[str, Callable[[Any, pytest.Item], Mapping[str, Any]]] = {
    PROCESSES: _options_of_processes,
    THREADS: _options_of_threads,
    WORKERS: _options_of_workers,
}


def _options_of_attributes(cls: Any, item: pytest.Item) -> Mapping[str, Any]:
    """Return the options of a class like DeepSpeed's `DistributedTest`; a mark or a parameter may give the size too."""
    size = getattr(cls, "world_size", None)
    for mark in item.iter_markers("world_size"):
        size = mark.args[0]
        break
    size = parameters(item).get("world_size", size)
    if not isinstance(size, int | list | tuple):
        raise UsageError(
            f"{cls.__name__} cannot be adopted: it has no attribute world_size, a number of ranks or a list of them, "
            "and is derived from none of torch's classes " + ", ".join(REPLACED)
        )
    found = {option: getattr(cls, name) for name, option in _ATTRIBUTES.items() if hasattr(cls, name)}
    return {"world_size": size, **found}
