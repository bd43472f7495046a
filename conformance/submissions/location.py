"""Finds a submission on disk, without importing any of it."""

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pytest_ddp.errors import UsageError

_PLACES = ("tests/adapters.py", "adapters.py")
_TEMPLATE_PACKAGE = "cs336-basics"


@dataclass(frozen=True)
class Location:
    """Where a submission's adapters are.

    Attributes:
        given: what the user wrote.
        module: the name to import the adapters under.
        file: the adapters' file; None for an importable module.
        root: the submission's folder; None for an importable module.
        import_roots: folders that the submission may import from.
    """

    given: str
    module: str
    file: str | None = None
    root: str | None = None
    import_roots: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the location that `dataclasses.asdict` took apart, also after a trip through JSON text."""
        return cls(**{**plain, "import_roots": tuple(plain["import_roots"])})

    @property
    def subfolder(self) -> Path:
        """Where files about this submission go, below a folder for those of all: laid out as the submissions are.

        Submissions of many people often have one name, and what shows one's failure must not be taken for another's.
        """
        if self.file is None:
            return Path(self.given)
        here, path = Path.cwd(), Path(os.path.normpath(Path(self.given).absolute()))
        return path.relative_to(here if path.is_relative_to(here) else path.anchor)


def locate(given: str) -> Location:
    """Return where the adapters of a folder, a file or a module are.

    Raises:
        UsageError: there is nothing, or nothing with adapters.
    """
    path = Path(given)
    if path.is_dir():
        for place in _PLACES:
            if (path / place).is_file():
                return _in_folder(given, path.resolve(), place)
        raise UsageError(f"no adapters in {given}: neither {' nor '.join(_PLACES)} is there")
    if path.is_file():
        return _at_file(given, path.resolve())
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", given) and importlib.util.find_spec(given.partition(".")[0]):
        return Location(given, given)
    raise UsageError(f"{given} is no folder, no file and no module that Python can import from here")


def _at_file(given: str, path: Path) -> Location:
    if path.suffix != ".py":
        raise UsageError(f"{given} is no Python file: a submission is a folder, a .py file or a module")
    if path.parent.name == "tests":
        return _in_folder(given, path.parent.parent, f"tests/{path.name}")
    return _in_folder(given, path.parent, path.name)


def _in_folder(given: str, root: Path, place: str) -> Location:
    module = place.removesuffix(".py").replace("/", ".")
    return Location(given, module, str(root / place), str(root), tuple(map(str, _import_roots(root))))


def _import_roots(root: Path) -> Iterator[Path]:
    """Yield the submission's folder, then those of packages beside its own: templates in their folders, src layouts."""
    folders = [root, *sorted(path.parent for path in root.glob("*/pyproject.toml")), root.parent / _TEMPLATE_PACKAGE]
    for folder in folders:
        if folder.is_dir():
            yield folder
            if (folder / "src").is_dir():
                yield folder / "src"
