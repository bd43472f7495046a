"""Which modules were imported since, and which are the grader's.

A look at all modules writes to each of their objects, so each rank would get a copy of a page for each of two thousand
modules that it shares with its fork server. `sys.modules` is in the order of imports: new ones are at its end.
"""

import sys
from collections.abc import Iterator
from types import ModuleType

_PACKAGES = ("conformance", "pytest_ddp")
_ours: list[str] = []
_seen = ""  # the last module at which `ours` has looked


def last() -> str:
    """Return the name of the module that was imported last."""
    return next(reversed(sys.modules))


def since(name: str) -> Iterator[str]:
    """Yield the names of the modules imported after that one, the latest first; of all, if it is no longer there."""
    for later in list(_until(name)):
        if later in sys.modules:
            yield later


def _until(name: str) -> Iterator[str]:
    for later in reversed(sys.modules):
        if later == name:
            return
        yield later


def ours() -> Iterator[tuple[str, ModuleType]]:
    """Yield names and modules of the grader's packages."""
    global _seen  # noqa: PLW0603  a process's
    known = set(_ours)
    new = [name for name in since(_seen) if name.partition(".")[0] in _PACKAGES and name not in known]
    _ours.extend(reversed(new))
    _seen = last()
    for name in _ours:
        if name in sys.modules:
            yield name, sys.modules[name]


for _ in ours():  # in the fork server, where it costs no rank anything
    pass
