"""Finds a submission on disk, without importing any of it."""

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Self

from pytest_ddp.errors import UsageError

_PLACES = ("tests/adapters.py", "adapters.py")
_TEMPLATE_PACKAGE = "cs336-basics"
_ADAPTER = re.compile(r"\bdef get_(\w*ddp|fsdp|sharded_optimizer)")  # tells it from the adapters of another assignment


@dataclass(frozen=True)
class Location:
    """Where a submission's adapters are.

    Attributes:
        given: the path or the module name that the user gave.
        module: the name to import the adapters under.
        file: the adapters' file; None for an importable module.
        root: the submission's folder; None for an importable module.
        import_roots: folders that the submission may import from, in their order on `sys.path`.
        libraries: packages whose exceptions count as the submission's own refusals.
    """

    given: str
    module: str
    file: str | None = None
    root: str | None = None
    import_roots: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("torch.distributed.fsdp",)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the location that `dataclasses.asdict` took apart, also after a trip through JSON text."""
        folders, libraries = tuple(plain["import_roots"]), tuple(plain["libraries"])
        return cls(**{**plain, "import_roots": folders, "libraries": libraries})

    @property
    def subfolder(self) -> Path:
        """The folder for files about this submission, below one for all submissions: its path from where we are.

        The folders of many students often have the same name, and the files of one must not replace another's.
        """
        if self.file is None:
            return Path(self.given)
        here, path = Path.cwd(), Path(os.path.normpath(Path(self.given).absolute()))
        return path.relative_to(here if path.is_relative_to(here) else path.anchor)


def locate(given: str) -> Location:
    """Return where the adapters of a submission are: a folder, a file or an importable module.

    Raises:
        UsageError: there is no such thing, or a folder without adapters.
    """
    path = Path(given)
    if path.is_dir():
        for place in _PLACES:
            if (path / place).is_file():
                return _in_folder(given, path.resolve(), place)
        return _in_folder(given, _nested(path).resolve(), _PLACES[0])
    if path.is_file():
        return _at_file(given, path.resolve())
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", given):
        package, here = given.partition(".")[0], str(Path.cwd())
        if importlib.util.find_spec(package):
            return Location(given, given)
        if PathFinder.find_spec(package, [here]):
            return Location(given, given, import_roots=(here,))
    raise UsageError(f"{given} is no folder, no file and no module that Python can import from here")


def _nested(path: Path) -> Path:
    """Return the one folder, at most two levels below a path, that holds a submission in the official layout."""
    folders = [found.parents[1] for level in ("*", "*/*") for found in sorted(path.glob(f"{level}/{_PLACES[0]}"))]
    ours = [folder for folder in folders if _ADAPTER.search((folder / _PLACES[0]).read_text("utf-8", "replace"))]
    if len(ours) == 1:
        return ours[0]
    what = f"give one of {', '.join(map(str, ours))}" if ours else "start in your repository, or give its path"
    raise UsageError(f"no adapters in {path.resolve()}: neither {' nor '.join(_PLACES)} is there; {what}")


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
    """Yield the folders that the submission imports from, each followed by its `src`.

    Its own folder comes first, then those that its pyproject.toml gives to uv, then packages that lie beside its own.
    """
    template = [root / _TEMPLATE_PACKAGE, root.parent / _TEMPLATE_PACKAGE]
    folders = [root, *_uv_folders(root), *sorted(path.parent for path in root.glob("*/pyproject.toml")), *template]
    for folder in dict.fromkeys(folders):
        yield from (found for found in (folder, folder / "src") if found.is_dir())


def _uv_folders(root: Path) -> list[Path]:
    """Return the folders of `tool.uv.sources` and of the members of `tool.uv.workspace`; none if uv is not used."""
    try:
        uv = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
        sources = [source["path"] for source in uv.get("sources", {}).values() if "path" in source]
        patterns = uv.get("workspace", {}).get("members", ())
        members = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no such file, no TOML, or of another shape
        return []
    return [*((root / path).resolve() for path in sources), *members]
