"""Keeps a submission away from the grader's packages, although both share a process.

It may not import them, read their modules, change them, or open their files. Nor may it look for their objects in
the frames of the process, or in what the garbage collector lists. A name of a package that the submission has itself
means its own one.
"""

import inspect
import linecache
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from conformance.ranks import imported
from conformance.submissions.location import Location

_HOME = str(Path(__file__).parents[2])
_HARNESS = ("conformance", "pytest_ddp")
_REFERENCE = "reference"
_SHARED = ("conformance.workload", "conformance.scenarios")  # classes of a model, which a submission may pickle
_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_LEADING = {
    *("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
}  # audit events of what leads to every object
_OF_FILES = {"open", "os.chmod", "os.link", "os.remove", "os.rename", "os.truncate"}
_FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
_FRAME_READERS = (inspect.__file__, traceback.__file__, logging.__file__)
Owns = Callable[[str], bool]


def install(location: Location, lies_there: Owns) -> None:
    """Guard the grader's packages in this process for good, but for one that the user names as the submission.

    A submission does not own the grader because it lies in a folder above it.

    Args:
        location: where the submission is.
        lies_there: whether a file lies in the submission.
    """
    packages = [name for name in (*_HARNESS, _REFERENCE) if not _is_submitted(name, location)]
    folders = tuple(map(_inside, packages))

    def owns(file: str) -> bool:
        return lies_there(file) and not file.startswith(folders)

    sys.meta_path.insert(0, _Finder(owns, [root for root in location.import_roots if root != _HOME], packages))
    sys.addaudithook(_watch(owns, folders))
    for name in ("stack", "trace"):
        setattr(inspect, name, _without_frames(getattr(inspect, name)))
    guarded = _guarded(owns)
    for name, module in list(imported.ours()):
        if not name.startswith(_SHARED):
            module.__class__ = guarded


def _is_submitted(package: str, location: Location) -> bool:
    """Whether the user names one of our packages, or a folder in it, as the submission."""
    if location.root is None:
        return location.module.partition(".")[0] == package
    return os.path.join(location.root, "").startswith(_inside(package))  # noqa: PTH118  paths are compared as text


def refusal(what: str) -> str:
    """Say that something is not for the submission."""
    return f"{what} belongs to the grader: a submission may neither use nor change it"


def _without_frames(real: Callable[..., list[inspect.FrameInfo]]) -> Callable[..., list[inspect.FrameInfo]]:
    """Return `inspect.stack` or `inspect.trace` such that it tells of frames and gives none."""

    def told(context: int = 1) -> list[Any]:
        nothing: Any = None
        return [info._replace(frame=nothing) for info in real(context) if info.filename != __file__]

    return told


def _inside(package: str) -> str:
    return os.path.join(_HOME, package, "")  # noqa: PTH118  paths are compared as text


_OURS = tuple(map(_inside, _HARNESS))
_READERS = (linecache.__file__, os.path.join(os.path.dirname(torch.__file__), ""))  # noqa: PTH118, PTH120  as text


def _asks(owns: Owns, *, reads: bool = False) -> bool:
    """Whether the submission asks, and not the grader: which of them has the innermost frame.

    A traceback and torch's compiler may read what the submission may not: they ask for themselves.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the frames are what counts
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS) and file != __file__:
            return False
        if owns(file) or file == "<string>":
            return True
        if reads and file.startswith(_READERS):
            return False
        frame = frame.f_back
    return True  # a thread of the submission


def _asks_itself(owns: Owns) -> bool:
    """Whether code of the submission asks, or a function of the standard library that hands it what it reads."""
    frame: FrameType | None = sys._getframe(3)  # noqa: SLF001  the caller of the audit hook
    if frame is not None and frame.f_code.co_filename in _FRAME_READERS:
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return owns(file) or file == "<string>"


class _Finder(MetaPathFinder):
    """The first import finder: finds a submission's own package of a guarded name, and none of ours for it."""

    def __init__(self, owns: Owns, import_roots: Sequence[str], packages: Sequence[str]) -> None:
        self._owns, self._roots, self._packages = owns, import_roots, packages

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a submission's own top-level package; raise ImportError for ours."""
        if name.partition(".")[0] not in self._packages or not _asks(self._owns):
            return None
        if path is not None and not any(folder.startswith(_HOME) for folder in path):
            return None
        own = PathFinder.find_spec(name, self._roots) if path is None else None
        if own is None:
            raise ImportError(refusal(name))
        return own


def _watch(owns: Owns, folders: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that refuses the submission our files, and changes of our functions."""
    realpath, reference, local = os.path.realpath, _inside(_REFERENCE), threading.local()

    def look(event: str, details: tuple[Any, ...]) -> None:
        if (event in _LEADING or details[1] in _FRAMES) and _asks_itself(owns):
            raise PermissionError(refusal(f"what `{event if event in _LEADING else details[1]}` leads to"))

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if event in _LEADING or event == "object.__getattr__":
            if not getattr(local, "looks", False):
                local.looks = True  # to look is an event, too
                try:
                    look(event, details)
                finally:
                    local.looks = False
            return
        if event in _OF_FILES and isinstance(details[0], str | bytes):
            path = os.fsdecode(realpath(details[0]))
            if path.startswith(folders) and _asks(owns, reads=not path.startswith(reference)):
                raise PermissionError(refusal(path))
        elif event == "object.__setattr__" and details[1] in _FUNCTION_PARTS:
            function = details[0]
            if function.__code__.co_filename.startswith(_OURS) and _asks(owns):
                raise PermissionError(refusal(f"{function.__module__}.{function.__qualname__}"))

    return watch


def _guarded(owns: Owns) -> type[ModuleType]:
    """Return the class of modules which a submission can neither read nor change."""

    def require(module: ModuleType, name: str, *, reads: bool = False) -> None:
        if _asks(owns, reads=reads):
            raise AttributeError(refusal(f"{module.__name__}.{name}"))

    class GuardedModule(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__" and _asks(owns, reads=True):  # `inspect` and `linecache` read what begins with "__"
                return {key: value for key, value in super().__getattribute__(name).items() if key.startswith("__")}
            if not name.startswith("__"):
                require(self, name, reads=True)
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            require(self, name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            require(self, name)
            super().__delattr__(name)

    return GuardedModule
