"""The adapters of a library: a module that imports its functions by name, under the names that components ask for.

Ranks import this module and the library. They must not import the test file: it imports `conformance`, which no code
under test may do.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from conformance.submissions.location import Location, locate
from pytest_ddp.errors import UsageError

FunctionOrName: TypeAlias = Callable[..., Any] | str
_FILE = '''"""Written by `conformance.verify`: what the components ask for, from the library."""

import importlib
import operator
import sys

sys.path += [folder for folder in {folders!r} if folder not in sys.path]


def _imported(module, name):
    return operator.attrgetter(name)(importlib.import_module(module))


{functions}
'''
_OF_TORCH = "torch"


@dataclass(frozen=True)
class Named:
    """A function of the library, by the name of its module and its name there."""

    module: str
    name: str

    @classmethod
    def of(cls, role: str, given: FunctionOrName, test_file: Path) -> "Named":
        """Return the name of what was given to `verify` as `role`.

        Raises:
            UsageError: ranks cannot import it by a name.
        """
        if isinstance(given, str):
            module, _, name = given.partition(":")
            if not (all(part.isidentifier() for part in f"{module}.{name}".split("."))):
                raise UsageError(f'{role}={given!r}: expected "module:function", as in "mylib.ddp:wrap"')
            return cls(module, name)
        return cls._of_function(role, given, test_file)

    @classmethod
    def _of_function(cls, role: str, given: Callable[..., Any], test_file: Path) -> "Named":
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
        if not module or not name or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                f"{role}={given!r}: ranks import functions by name, and this one has none. Define a function with "
                f'`def` in a module, and give "module:function".'
            )
        if Path(getattr(sys.modules.get(module), "__file__", None) or "") == test_file:
            raise UsageError(
                f"{role}={name}: ranks import its module, and must not import a module that uses `conformance`. Move "
                f"it from {test_file.name} to a module of its own."
            )
        return cls(module, name)

    @property
    def package(self) -> str:
        """The package whose exceptions are the library's refusals; torch is many libraries."""
        top = self.module.partition(".")[0]
        return self.module if top == _OF_TORCH else top

    def __str__(self) -> str:
        return f"_imported({self.module!r}, {self.name!r})"


def hold_importable(role: str, wanted: Named, folder: Path) -> None:
    """Raise UsageError if there is no module of this name, for a test file in `folder`; import nothing."""
    top = wanted.module.partition(".")[0]
    before = list(sys.path)
    sys.path.append(str(folder))
    try:
        found = top in sys.modules or importlib.util.find_spec(top) is not None
    finally:
        sys.path[:] = before
    if not found:
        raise UsageError(f"{role}={wanted.module}:{wanted.name}: there is no module `{top}`")


def write(folder: Path, functions: Mapping[str, Named | None], test_file: Path, libraries: tuple[str, ...]) -> Location:
    """Write the adapters into a folder; return where they are.

    Args:
        folder: an empty folder.
        functions: by the name of an adapter function, the library's; None for one that does nothing.
        test_file: the file that calls `verify`: modules beside it can be imported.
        libraries: further packages whose exceptions count as refusals.
    """
    folders = [entry for entry in (*sys.path, str(test_file.parent)) if entry]
    text = _FILE.format(folders=folders, functions="\n".join(_definitions(functions)))
    (folder / "adapters.py").write_text(text, encoding="utf-8")
    location, own = locate(str(folder)), (one.package for one in functions.values() if one)
    return replace(location, libraries=tuple(dict.fromkeys((*location.libraries, *libraries, *own))))


def _definitions(functions: Mapping[str, Named | None]) -> Iterator[str]:
    for name, wanted in functions.items():
        yield f"{name} = {wanted}" if wanted else f"def {name}(*_):\n    pass\n"
