"""Loads a submission's adapters. This runs in ranks only: the judge never imports what it judges."""

import gc
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from conformance.ranks import stand_ins
from conformance.submissions.contract import Contract, Function
from conformance.submissions.location import Location

T = TypeVar("T")
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_TORCHS_SHARDING = "/torch/distributed/fsdp/"
_loaded: dict[Location, ModuleType] = {}


def load(location: Location, stubbed: tuple[str, ...] = ()) -> ModuleType:
    """Import the adapters, once in a process; offer stubs for optional packages that turn out to be absent."""
    if location not in _loaded:
        stand_ins.install(location)
        for package in stubbed:
            stand_ins.packages.offer(package)
        _loaded[location] = with_stubs(lambda: _import(location), location)
        gc.collect()
        gc.freeze()  # a submission may import a million objects, and each run ends with a garbage collection
    return _loaded[location]


def with_stubs(call: Callable[[], T], location: Location) -> T:
    """Call something that may import; repeat it for as long as a stub can be offered for what was missing.

    A stub is offered only once an import has failed for good: code that copes with an absent package is left alone.
    The submission's modules are then imported afresh.
    """
    before = set(sys.modules)
    while True:
        try:
            return call()
        except ImportError as error:
            if not stand_ins.packages.allow(error):
                raise
            for name in [name for name in set(sys.modules) - before if _is_of(sys.modules[name], location)]:
                del sys.modules[name]


def function(adapters: ModuleType, wanted: Function | None) -> Callable[..., Any]:
    """Return an adapter function; one that does nothing where the component has none."""
    return (lambda *_: None) if wanted is None else getattr(adapters, wanted.name)


def missing(adapters: ModuleType, contract: Contract) -> list[str]:
    """Return the component's functions, as they are called, that the adapters do not define."""
    return [str(wanted) for wanted in contract.functions if not callable(getattr(adapters, wanted.name, None))]


def wrong_signature(adapters: ModuleType, wanted: Function) -> str | None:
    """Return what is wrong with the signature of an adapter function, if anything is."""
    try:
        seen = inspect.signature(getattr(adapters, wanted.name))
    except (TypeError, ValueError):  # a callable without an inspectable signature: calling it will tell
        return None
    try:
        seen.bind(*wanted.parameters, **({"lr": 0.1, "weight_decay": 0.0} if wanted.keywords else {}))
    except TypeError as error:
        return f"{wanted.name} has the signature {wanted.name}{seen}; it is called as {wanted} ({error})"
    return None


def own_frames(error: BaseException, location: Location) -> str:
    """Return the frames of an error's traceback that are in the submission's files.

    If there are none, return the last frame, unless it is a refusal of ours, whose message says enough.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename, location)]
    last = [frame for frame in frames[-1:] if not (frame.filename.startswith(_OURS) and _is_raise(frame.line or ""))]
    return "".join(traceback.format_list(own or last)).rstrip()


def trimmed_traceback(error: BaseException, location: Location) -> str:
    """Return the traceback of an error with `own_frames` only; a syntax error tells its place itself."""
    frames = [] if isinstance(error, SyntaxError) else [own_frames(error, location)]
    return printable("\n".join([*frames, "".join(traceback.format_exception_only(error)).rstrip()]))


def printable(text: str) -> str:
    """Return a text with surrogates, which no file takes, written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def raised_on_purpose(error: BaseException, location: Location) -> bool:
    """Whether a `raise` statement of the submission's own has raised an error: a refusal, rather than an accident.

    Whoever builds on torch's own sharding may leave it to that to say what it does not do.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    whose = is_own(last.filename, location) or _TORCHS_SHARDING in last.filename
    return isinstance(error, Exception) and whose and _is_raise(last.line or "")


def _is_raise(line: str) -> bool:
    return line.lstrip().startswith("raise ")


def is_own(filename: str, location: Location) -> bool:
    """Whether a file belongs to the submission."""
    if location.root is None:
        module = sys.modules.get(location.module.partition(".")[0])
        roots: tuple[str, ...] = tuple(getattr(module, "__path__", ()))
    else:
        roots = location.import_roots
    return any(filename.startswith(f"{root}/") for root in roots)


def _is_of(module: ModuleType, location: Location) -> bool:
    """Whether a module is the submission's; one without a file, a namespace package, is known by its folders."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(is_own(place, location) for place in places if place)


def _import(location: Location) -> ModuleType:
    if location.file is None:
        return importlib.import_module(location.module)
    sys.path.extend(root for root in location.import_roots if root not in sys.path)
    package = location.module.rpartition(".")[0]
    if package:
        _make_package(package, Path(location.file).parent)
    else:
        sys.modules.pop(location.module, None)
    return _execute(location.module, Path(location.file))


def _make_package(name: str, folder: Path) -> None:
    """Make `name` the submission's package, whatever package of that name is importable from here."""
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
