"""A library as a submission: adapters that import its functions by name, under the names that components ask for.

Ranks import this module and the library. They must not import the test file: it imports `conformance`, which no code
under test may do.
"""

import importlib.util
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

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
    """A function of the library, by the name of its module and its name there; `role` is the argument of `verify`."""

    role: str
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
            return cls(role, module, name)
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
        return cls(role, module, name)

    @property
    def package(self) -> str:
        """The package whose exceptions are the library's refusals; torch is many libraries."""
        top = self.module.partition(".")[0]
        return self.module if top == _OF_TORCH else top

    @property
    def statements(self) -> Iterator[str]:
        """The statements that import it under the name of its role."""
        first, _, rest = self.name.partition(".")
        renamed = "" if first == self.role else f" as {self.role}"
        yield f"from {self.module} import {first}{renamed}"
        if rest:
            yield f"{self.role} = {self.role}.{rest}"

    def hold_importable(self, folder: Path) -> None:
        """Raise UsageError if there is no module of this name, for a test file in `folder`; import nothing."""
        top = self.module.partition(".")[0]
        before = list(sys.path)
        sys.path.append(str(folder))
        try:
            found = top in sys.modules or importlib.util.find_spec(top) is not None
        finally:
            sys.path[:] = before
        if not found:
            raise UsageError(f"{self.role}={self.module}:{self.name}: there is no module `{top}`")

    def __str__(self) -> str:
        return f"_imported({self.module!r}, {self.name!r})"


@dataclass(frozen=True)
class Library:
    """What ranks and scripts need to import the functions of a library.

    Attributes:
        functions: by the name of an adapter function, the library's; None for one that does nothing.
        folders: folders to import from that another Python process does not have on its `sys.path`.
        refusers: further packages whose exceptions count as the library's own refusals.
    """

    functions: dict[str, Named | None]
    folders: tuple[str, ...]
    refusers: tuple[str, ...] = ()

    @classmethod
    def here(cls, functions: dict[str, Named | None], test_file: Path, refusers: tuple[str, ...]) -> Self:
        """Return the library as this process imports it; modules beside the test file can be imported, too."""
        usual = _usual_folders()
        folders = [str(Path(entry).absolute()) for entry in (*sys.path, str(test_file.parent)) if entry]
        own = (one for one in folders if not any(Path(one).is_relative_to(folder) for folder in usual))
        return cls(functions, tuple(dict.fromkeys(one for one in own if Path(one).is_dir())), refusers)

    def renamed(self, text: str) -> str:
        """Return a text with the names of adapter functions replaced by those of the arguments of `verify`."""
        roles = {"on_after_backward": "after_backward"}
        roles |= {name: one.role for name, one in self.functions.items() if one}
        return re.sub(r"\b\w+\b", lambda word: roles.get(word[0], word[0]), text)

    def write(self, folder: Path) -> Location:
        """Write the adapters into an empty folder; return where they are."""
        text = _FILE.format(folders=list(self.folders), functions="\n".join(self._definitions()))
        (folder / "adapters.py").write_text(text, encoding="utf-8")
        location, own = locate(str(folder)), (one.package for one in self.functions.values() if one)
        return replace(location, libraries=tuple(dict.fromkeys((*location.libraries, *self.refusers, *own))))

    def _definitions(self) -> Iterator[str]:
        for name, wanted in self.functions.items():
            yield f"{name} = {wanted}" if wanted else f"def {name}(*_):\n    pass\n"

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the library that `to_json` took apart, also after a trip through JSON text."""
        functions = {name: one and Named(**one) for name, one in plain["functions"].items()}
        return cls(functions, tuple(plain["folders"]), tuple(plain["refusers"]))


def _usual_folders() -> list[Path]:
    """Return the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    standard = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(folder).absolute() for folder in (*standard, *site.getsitepackages(), site.getusersitepackages())]
