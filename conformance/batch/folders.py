"""Folders that somebody else has filled, whatever is in them: walks through them and removes them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pytest_ddp.errors import UsageError

MOST_DEPTH = 64  # folders in one another
_LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules"}


def content_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a submission, each with its path below `path`, which is empty for a submission of one file.

    What version control and package managers keep is left out, and links that lead outside: ranks see nothing there.

    Raises:
        UsageError: there are too many folders in one another.
        OSError: a folder cannot be read.
    """
    if path.is_file():
        yield "", path
    folders = [path] if path.is_dir() else []
    while folders:
        with os.scandir(folders.pop()) as found:
            inside = [entry for entry in found if entry.name not in _LEFT_OUT]
        for entry in inside:
            relative = Path(entry.path).relative_to(path)
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(path)):
                continue
            if entry.is_file():
                yield str(relative), Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                hold_depth(path.name, relative)
                folders.append(Path(entry.path))


def is_left_out(relative: Path) -> bool:
    """Whether a path in a submission belongs to version control or a package manager."""
    return not _LEFT_OUT.isdisjoint(relative.parts)


def hold_depth(name: str, relative: Path) -> None:
    """Raise UsageError if a path in a submission leads through too many folders."""
    if len(relative.parts) > MOST_DEPTH:
        raise UsageError(f"{name} has more than {MOST_DEPTH} folders in one another")


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as possible, if it is there."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # `rm` needs neither recursion nor a descriptor for each of many folders in one another
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)  # noqa: S607
