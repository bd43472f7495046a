"""Imports a submission's adapters, on ranks only: the judge never imports what it judges."""

import gc
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar
from unittest import mock

from conformance.ranks import guard, imported, integrity, stand_ins
from conformance.submissions.contract import Contract, Function
from conformance.submissions.location import Location
from pytest_ddp.pool.parent_death import adopt_orphans

T = TypeVar("T")
_loaded: dict[Location, ModuleType] = {}
_own_names: dict[Location, set[str]] = {}


def load(location: Location, stubbed: tuple[str, ...] = ()) -> ModuleType:
    """Import the adapters, once in a process, with stand-ins for optional packages that are absent."""
    if location not in _loaded:
        stand_ins.install(location)
        for package in stubbed:
            stand_ins.packages.offer(package)
        integrity.watch()
        adopt_orphans()  # `process_memory` weighs the children of this process
        guard.install(location, partial(is_own, location=location))
        with _exits_raise():
            _loaded[location] = with_stubs(lambda: _import(location), location)
        gc.collect()
        gc.freeze()  # a submission may import a million objects, and each run ends with a garbage collection
    return _loaded[location]


def load_again(location: Location) -> tuple[ModuleType, dict[str, ModuleType]]:
    """Import the adapters once more, for a simulated rank, after `load`; return them, and all modules of theirs.

    The adapters of an installed package are not imported again: its ranks share them.
    """
    if location.root is None:
        return _loaded[location], {}
    if location not in _own_names:
        _own_names[location] = {name for name, module in list(sys.modules.items()) if _is_of(module, location)}
    for name in _own_names[location]:
        sys.modules.pop(name, None)
    before = set(sys.modules)
    adapters = with_stubs(lambda: _import(location), location)
    own = {name: sys.modules[name] for name in set(sys.modules) - before if _is_of(sys.modules[name], location)}
    _own_names[location] |= set(own)
    return adapters, own


@contextmanager
def _exits_raise() -> Iterator[None]:
    """Let `os._exit` raise SystemExit during the block, so that a traceback shows its line; not in other processes."""
    rank, leave = os.getpid(), os._exit

    def leave_or_raise(code: int) -> NoReturn:
        if os.getpid() != rank:
            leave(code)
        raise SystemExit(f"os._exit({code}) ends the process")

    with mock.patch.object(os, "_exit", leave_or_raise):
        yield


def with_stubs(call: Callable[[], T], location: Location) -> T:
    """Call a function that may import; call it again with a stand-in for each optional package that it lacks.

    A stand-in is offered only after an exception has reached this function: a submission that catches the ImportError
    itself gets none. The submission's modules are imported again after that.
    """
    before = imported.last()
    while True:
        try:
            return call()
        except ImportError as error:
            if not stand_ins.packages.allow(error):
                raise
            for name in [name for name in imported.since(before) if _is_of(sys.modules[name], location)]:
                del sys.modules[name]


def function(adapters: ModuleType, wanted: Function | None) -> Callable[..., Any]:
    """Return an adapter function; if the component has none, return a function that does nothing."""
    return (lambda *_: None) if wanted is None else getattr(adapters, wanted.name)


def missing(adapters: ModuleType, contract: Contract) -> list[str]:
    """Return the functions that the adapters do not define, each with its parameters.

    If a pair has no wrapper, those of its last wrapper are among them.
    """
    lacks = [str(wanted) for wanted in contract.functions if not callable(getattr(adapters, wanted.name, None))]
    without = [missing(adapters, wrapper) for wrapper in contract.wrappers]
    return lacks + (without[-1] if without and all(without) else [])


def wrong_signature(adapters: ModuleType, wanted: Function) -> str | None:
    """Return a sentence if an adapter function cannot be called as its contract says; None if it can."""
    try:
        seen = inspect.signature(getattr(adapters, wanted.name))
    except (TypeError, ValueError):  # it has no signature to look at: a call will fail, if need be
        return None
    try:
        seen.bind(*wanted.parameters, **({"lr": 0.1, "weight_decay": 0.0} if wanted.keywords else {}))
    except TypeError as error:
        return f"{wanted.name} has the signature {wanted.name}{seen}; it is called as {wanted} ({error})"
    return None


def is_own(filename: str, location: Location) -> bool:
    """Whether a file belongs to the submission."""
    if location.root is None:
        return _is_in_package(filename, location.module.partition(".")[0])
    return any(filename.startswith(f"{root}/") for root in location.import_roots)


def is_of_library(filename: str, location: Location) -> bool:
    """Whether a file belongs to a library that may refuse for the submission."""
    return any(_is_in_package(filename, name) for name in location.libraries)


def _is_in_package(filename: str, name: str) -> bool:
    module = sys.modules.get(name)
    folders = getattr(module, "__path__", None)
    if folders is None:
        return module is not None and filename == getattr(module, "__file__", None)
    return any(filename.startswith(f"{folder}/") for folder in folders)


def _is_of(module: ModuleType, location: Location) -> bool:
    """Whether a module is the submission's; a namespace package has no file, and is known by its folders."""
    kept = getattr(module, "__dict__", {})  # an object with a `__getattr__` may be in place of a module
    places = [kept.get("__file__"), *kept.get("__path__", ())]
    return any(is_own(place, location) for place in places if place)


def _import(location: Location) -> ModuleType:
    sys.path.extend(root for root in location.import_roots if root not in sys.path)
    if location.file is None:
        return importlib.import_module(location.module)
    package = location.module.rpartition(".")[0]
    if package:
        _make_package(package, Path(location.file).parent)
    else:
        sys.modules.pop(location.module, None)
    return _execute(location.module, Path(location.file))


def _make_package(name: str, folder: Path) -> None:
    """Make `name` the submission's package, also if another package of that name can be imported."""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]
    if (folder / "__init__.py").is_file():
        _execute(name, folder / "__init__.py", str(folder))
        return
    sys.modules[name] = package = ModuleType(name)
    package.__path__ = [str(folder)]


def _execute(name: str, file: Path, folder: str | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder] if folder else None)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported", name=name)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
