"""Globals of the user's modules on simulated ranks, which share the modules of their process.

A global that a function of its module assigns (`global NAME`) is kept for each rank: it is exchanged when another rank
goes on, as long as no rank runs it has the value of the process. What cannot be kept apart is noticed: a list, set or
dict in a global that ranks change in place, and a global that is assigned from outside of its module. Whether a dict is
a cache that all may share, or per-rank state, cannot be known: it counts as a cache if one rank alone adds keys to it.
"""

import ast
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pytest_ddp.planning.world import rank_list

_MOST_ELEMENTS = 10_000  # of a container that is compared; of larger ones, only their number
_ABSENT = object()
_CONTAINERS = (list, set, dict, defaultdict, OrderedDict, Counter)
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTEAD = "Keep it in a fixture or in a local variable, or use real ranks (docs/simulated.md)"

Place = tuple[str, str]  # the names of a module and of a global in it


@dataclass
class _Container:
    """A list, set or dict in a global, and what was in it when the test began.

    Attributes:
        ranks: the ranks while which its length changed.
    """

    place: Place
    value: Any
    before: Any = None
    ranks: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before = self.value.copy() if len(self.value) <= _MOST_ELEMENTS else None

    def changed(self) -> bool:
        """Whether something else is in it now; not if it is a cache."""
        if self.before is None:
            return bool(self.ranks)
        if not isinstance(self.value, dict):
            gather = list if isinstance(self.value, list) else set
            return gather(map(id, self.value)) != gather(map(id, self.before))
        grew_only = all(self.value.get(key, _ABSENT) is value for key, value in self.before.items())
        return not grew_only or (len(self.value) > len(self.before) and len(self.ranks) != 1)


class SharedGlobals:
    """The globals of the modules below a folder that ranks assign or change.

    Args:
        root: the folder; installed packages in it are left out.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._looked_at: set[str] = set()
        self._modules: list[ModuleType] = []
        self._kept: list[tuple[dict[str, Any], str]] = []  # globals that functions of their module assign
        self._of_process: list[Any] = []
        self._of_ranks: dict[int, list[Any]] = {}
        self._containers: list[_Container] = []
        self._lengths: list[int] = []
        self._before: dict[Place, Any] = {}

    def begin_test(self) -> None:
        """Note the globals as they are before ranks run a test."""
        self._look()
        self._before = dict(self._shared())
        self._containers = [_Container(place, value) for place, value in self._globals() if type(value) in _CONTAINERS]
        self._lengths = [len(container.value) for container in self._containers]

    def end_test(self) -> list[str]:
        """Return what ranks changed for one another since the test began, as sentences."""
        found = [_in_place(one) for one in self._containers if one.changed()]
        found += [_from_outside(place) for place in self._assigned()]
        self._before, self._containers, self._lengths = {}, [], []
        return found

    def switch(self, old: int | None, new: int | None) -> None:
        """Keep the globals of the rank that has run, and give the next one its own; None is the process itself."""
        if self._containers and old is not None:
            self._note_lengths(old)
        if not self._kept:
            return
        now = [namespace.get(name, _ABSENT) for namespace, name in self._kept]
        if old is None:
            self._of_process = now
        else:
            self._of_ranks[old] = now
        own = self._of_process if new is None else self._of_ranks.get(new, [])
        following = [*own, *self._of_process[len(own) :]]  # what was imported since the rank last ran
        for (namespace, name), value, was in zip(self._kept, following, now, strict=True):
            if value is not was:
                _assign(namespace, name, value)

    def _note_lengths(self, rank: int) -> None:
        lengths = [len(container.value) for container in self._containers]
        if lengths != self._lengths:
            for container, length, before in zip(self._containers, lengths, self._lengths, strict=True):
                if length != before:
                    container.ranks.add(rank)
            self._lengths = lengths

    def _assigned(self) -> Iterator[Place]:
        """Yield the globals that have another value now; not modules, classes and functions."""
        for place, value in self._shared():
            if value is not self._before.get(place, _ABSENT) and not isinstance(value, _CODE):
                yield place

    def _shared(self) -> Iterator[tuple[Place, Any]]:
        """Yield the globals that are not kept for each rank, with their values."""
        kept = {(namespace["__name__"], name) for namespace, name in self._kept}
        yield from ((place, value) for place, value in self._globals() if place not in kept)

    def _globals(self) -> Iterator[tuple[Place, Any]]:
        for module in self._modules:
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    yield (module.__name__, name), value

    def _look(self) -> None:
        """Find the modules that were imported since the last test, and the globals that their functions assign."""
        for name in sys.modules.keys() - self._looked_at:
            self._looked_at.add(name)
            module = sys.modules[name]
            file = getattr(module, "__file__", None) or ""
            if file.endswith(".py") and file.startswith(self._root) and not _is_installed(name, file):
                self._modules.append(module)
                self._kept += [(vars(module), assigned) for assigned in globals_assigned(Path(file))]


def globals_assigned(file: Path) -> list[str]:
    """Return the globals that functions of a module assign: those of its `global` statements."""
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source if "global " in source else "")
    except (OSError, ValueError, SyntaxError):
        return []
    return sorted({name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names})


def _is_installed(name: str, file: str) -> bool:
    return name.partition(".")[0] == "pytest_ddp" or "site-packages" in file or file.startswith(_INSTALLED)


def _assign(namespace: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        del namespace[name]
    else:
        namespace[name] = value


def _in_place(container: _Container) -> str:
    module, name = container.place
    ranks = rank_list(sorted(container.ranks)) if container.ranks else ""
    how = f"{ranks} added to it or removed from it" if ranks else "it was changed"
    kind = type(container.value).__name__
    return (
        f"simulated ranks share {module}.{name}, a {kind}, and {how}: each rank sees what the others put there, which "
        f"real ranks do not. {_INSTEAD}"
    )


def _from_outside(place: Place) -> str:
    module, name = place
    return (
        f"simulated ranks share {module}.{name}, and it was assigned from outside of {module}: each rank sees what any "
        f"of them assigned, which real ranks do not. {_INSTEAD}, or assign it in a function of {module} by "
        f"`global {name}`: each rank then has its own"
    )
