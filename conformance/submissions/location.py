"""Finds a submission on disk, without importing any of it."""

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Self

from pytest_ddp.errors import UsageError

_PLACES = ("tests/adapters.py", "adapters.py")
_PROJECT = "pyproject.toml"
_OF_SYSTEMS = {"__MACOSX", "__pycache__"}
_WRAPPED = 3  # folders that hold nothing but another one
_ADAPTERS = "adapters"
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
        left_out: folders outside of the submission that its pyproject.toml gives to uv, as they are written there.
        libraries: packages whose exceptions count as the submission's own refusals.
    """

    given: str
    module: str
    file: str | None = None
    root: str | None = None
    import_roots: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("torch.distributed.fsdp",)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the location that `dataclasses.asdict` took apart, also after a trip through JSON text."""
        lists = {name: tuple(plain[name]) for name in ("import_roots", "left_out", "libraries")}
        return cls(**{**plain, **lists})

    @property
    def is_file_alone(self) -> bool:
        """Whether the submission is one file, whatever lies beside it."""
        return self.file is not None and self.module == Path(self.file).stem and self.module != _ADAPTERS

    @property
    def not_imported(self) -> str:
        """Say what the submission may miss because it lies outside; "" if there is no such thing."""
        if self.is_file_alone:
            return "A .py file is graded without the files beside it. Give a folder with an adapters.py to grade all."
        if self.left_out:
            named = " and ".join(self.left_out)
            return f"pyproject.toml names {named}, which is not in the submission: nothing is imported from there."
        return ""

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
        UsageError: there is no such thing, it cannot be read, or it is a folder without adapters.
    """
    try:
        return _located(given)
    except OSError as error:
        deleted = given == "." and isinstance(error, FileNotFoundError)
        why = "it was deleted: change to it again" if deleted else error.strerror
        raise UsageError(f"{given} cannot be read: {why}") from None


def _located(given: str) -> Location:
    path = Path(given)
    if path.is_dir():
        adapters = path.resolve() / _PLACES[1]
        if adapters.parent.name == "tests" and adapters.is_file() and (adapters.parents[1] / _PROJECT).is_file():
            return _at_file(given, adapters)
        top, path = path, only_folder(path)
        for place in _PLACES:
            if (path / place).is_file():
                return _in_folder(given, path.resolve(), place)
        return _in_folder(given, _nested(path, top).resolve(), _PLACES[0])
    if path.is_file():
        return _at_file(given, path.resolve())
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", given):
        package, here = given.partition(".")[0], str(Path.cwd())
        if importlib.util.find_spec(package):
            return Location(given, given)
        if PathFinder.find_spec(package, [here]):
            return Location(given, given, import_roots=(here,))
    raise UsageError(f"{given} is no folder, no file and no module that Python can import from here")


def only_folder(path: Path) -> Path:
    """Return the folder in which a submission begins: where a folder holds another one alone, that one.

    An archive, and an export of a course system, often has the project in a folder, which may be in another one.
    """
    with suppress(OSError):  # a folder that cannot be read
        for _ in range(_WRAPPED):
            inside = [] if any((path / place).exists() for place in _PLACES) else shown(path)
            if len(inside) != 1 or inside[0].is_symlink() or not inside[0].is_dir():
                break
            path = inside[0]
    return path


def shown(folder: Path) -> list[Path]:
    """Return what is in a folder, without what systems put there: names that begin with a dot or an underscore.

    If there is nothing else, an underscore does not count.
    """
    inside = [one for one in folder.iterdir() if one.name[0] != "." and one.name not in _OF_SYSTEMS]
    return [one for one in inside if one.name[0] != "_"] or inside


def _nested(path: Path, top: Path) -> Path:
    """Return the one folder, at most two levels below a path, that holds a submission in the official layout.

    Raises:
        UsageError: there is none, or there are several; the message names the folder `top`, which was given.
    """
    files = [file for level in ("*", "*/*") for file in sorted(path.glob(f"{level}/{_PLACES[0]}"))]
    own = [file for file in files if _is_inside(file, path.resolve())]
    ours = [file.parents[1] for file in own if _ADAPTER.search(file.read_text("utf-8", "replace"))]
    if len(ours) == 1:
        return ours[0]
    if ours:
        what = f"give one of {', '.join(map(str, ours))}"
    elif top.resolve() == Path.cwd():
        what = "start in your repository, or give its path"
    else:
        what = "a submission is a folder that has one of them"
    raise UsageError(f"no adapters in {top.resolve()}: neither {' nor '.join(_PLACES)} is there; {what}")


def _at_file(given: str, path: Path) -> Location:
    if path.suffix != ".py":
        raise UsageError(f"{given} is no Python file: a submission is a folder, a .py file or a module")
    project = path.parents[1] if path.parent.name == "tests" else None
    if project is not None and (path.stem == _ADAPTERS or (project / _PROJECT).is_file()):
        return _in_folder(given, project, f"tests/{path.name}")
    if path.stem == _ADAPTERS:
        return _in_folder(given, path.parent, path.name)
    return Location(given, path.stem, str(path), str(path.parent), (str(path.parent),))


def _in_folder(given: str, root: Path, place: str) -> Location:
    if not _is_inside(root / place, root):
        raise UsageError(f"{place} leads out of {root}: a submission has its files in its own folder")
    module = place.removesuffix(".py").replace("/", ".")
    named = _uv_folders(root)
    roots = _import_roots(root, named)
    left_out = (str(path) for path in named if not any(_is_inside(root / path, Path(one)) for one in roots))
    return Location(given, module, str(root / place), str(root), tuple(roots), tuple(left_out))


def _import_roots(root: Path, named: Iterable[Path]) -> list[str]:
    """Return the folders that the submission imports from, each followed by its `src`, without symbolic links.

    Its own folder comes first, then those that its pyproject.toml gives to uv, then packages that lie beside its own.
    All lie in its own folder, but for the template's package: a sandbox shows what is imported, and the grader keeps
    its own packages from what is a submission's.
    """
    beside = root.parent / _TEMPLATE_PACKAGE
    packages = sorted(path.parent for path in root.glob(f"*/{_PROJECT}"))
    folders = [root, *(root / path for path in named), *packages, root / _TEMPLATE_PACKAGE]
    found = [place for folder in folders for place in _with_source(folder, root)]
    return list(dict.fromkeys([*found, *(_with_source(beside, beside) if is_template(beside) else ())]))


def _with_source(folder: Path, root: Path) -> list[str]:
    """Return a folder and its `src`, as far as they are folders and lie in `root`."""
    return [str(place.resolve()) for place in (folder, folder / "src") if _is_inside(place, root) and place.is_dir()]


def is_template(folder: Path) -> bool:
    """Whether a folder is the package of an earlier assignment, which submissions beside it import, and no link."""
    file = folder / _PROJECT
    if folder.name != _TEMPLATE_PACKAGE or folder.is_symlink() or not _is_inside(file, folder.resolve()):
        return False
    match _toml(file):
        case {"project": {"name": str(name)}}:
            return re.sub("[-_.]+", "-", name).lower() == _TEMPLATE_PACKAGE
    return False


def _is_inside(path: Path, root: Path) -> bool:
    """Whether something is there, and lies in the folder `root`, which has no symbolic link in its path."""
    try:
        return path.exists() and path.resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError):  # it may not be looked at, is no path, or is a circle of links
        return False


def _uv_folders(root: Path) -> list[Path]:
    """Return the folders of `tool.uv.sources` and of the members of `tool.uv.workspace`, as they are written.

    None if uv is not used. A pattern of members that leads elsewhere has no members.
    """
    file = root / _PROJECT
    try:
        uv = _toml(file)["tool"]["uv"] if _is_inside(file, root) else {}
        sources = [Path(source["path"]) for source in uv.get("sources", {}).values() if "path" in source]
        patterns = [Path(pattern) for pattern in uv.get("workspace", {}).get("members", ())]
        own = [pattern for pattern in patterns if not pattern.is_absolute() and ".." not in pattern.parts]
        members = [path.relative_to(root) for pattern in own for path in sorted(root.glob(str(pattern)))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):  # it has another shape
        return []
    return [*sources, *members]


def _toml(file: Path) -> dict[str, Any]:
    """Return what a TOML file says; nothing if it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
