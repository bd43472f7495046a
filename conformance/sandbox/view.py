"""What a submission's ranks see of the file system, as a value: no process is needed to make it or to test it."""

import importlib.util
import os
import site
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

TMP, SHARED_MEMORY = "/tmp", "/dev/shm"  # noqa: S108  those of the sandbox
HOME = f"{TMP}/home"
WORK = f"{TMP}/work"
USER = "submission"
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone",
    "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
_OURS = ("pytest_ddp", "conformance")
_SOLUTIONS = str(Path(__file__).parents[2] / "reference")  # an installation has them beside our packages
NEW = (TMP, "/dev", "/proc")  # folders of their own in each sandbox


@dataclass(frozen=True)
class View:
    """What the sandbox of one submission shows.

    Attributes:
        shown: files and folders that can be read, at the places where they are outside.
        emptied: folders in those that appear empty.
        links: symbolic links, each with its target.
        texts: further files, with their text.
    """

    shown: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    emptied: tuple[str, ...] = ()


def view_of(
    submission: Sequence[str], *, uid: int, path: Sequence[str] = sys.path, private: Iterable[str] | None = None
) -> View:
    """Return what the ranks of a submission see: the system, the interpreter, its packages, and the submission.

    They do not see the bundled references, whose text other programs of theirs could read, unless those are graded.

    Args:
        submission: the submission's own files and folders.
        uid: the user that the ranks are.
        path: where Python looks for modules.
        private: folders of which nothing is shown just because Python looks for modules there: the working directory,
            by default, and the user's home.
    """
    private = _private_folders() if private is None else private
    wanted = [*_SYSTEM, *_interpreter(), *_importable(path, submission, tuple(map(os.path.realpath, private)))]
    shown, links = _resolved([*wanted, *submission])
    emptied = _solutions_in(shown, tuple(map(os.path.realpath, submission)))
    return View(tuple(_outermost(shown)), tuple(links.items()), tuple(_texts(uid).items()), tuple(emptied))


def module_files(name: str, also_in: Sequence[str] = ()) -> list[str]:
    """Return the folders or the file of a top-level module, without importing it; nothing if there is none."""
    try:
        found = importlib.util.find_spec(name) or PathFinder.find_spec(name, also_in)
    except (ImportError, ValueError):
        return []
    if found is None:
        return []
    return list(found.submodule_search_locations or filter(None, [found.origin]))


def _solutions_in(shown: Sequence[str], submission: Sequence[str]) -> Iterator[str]:
    place = os.path.realpath(_SOLUTIONS)
    graded = any(_is_in(own, place) for own in submission)
    if os.path.isdir(place) and not graded and any(_is_in(place, one) for one in shown):  # noqa: PTH112
        yield place


def _interpreter() -> list[str]:
    folders = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    return [*sorted(folders - {"/"}), sys.executable, *site.getsitepackages()]


def _importable(path: Sequence[str], submission: Sequence[str], private: tuple[str, ...]) -> Iterator[str]:
    """Yield what Python imports from, but for folders that hold something private, the submission or this grader.

    Such a folder may hold results or other submissions: of it, only our own packages are shown.
    """
    ours = [place for name in _OURS for place in module_files(name)]
    yield from ours
    hidden = (*NEW, *private, *(os.path.realpath(place) for place in (*ours, *submission)))
    for folder in path:
        if folder and not any(_is_in(place, os.path.realpath(folder)) for place in hidden):
            yield folder


def _private_folders() -> list[str]:
    return [os.getcwd(), os.path.expanduser("~")]  # noqa: PTH109, PTH111  compared as text; there may be no home


def _resolved(places: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the places that exist, without symbolic links, and the links that lead to them."""
    shown, links = [], dict[str, str]()
    for place in places:
        absolute = os.path.abspath(place)  # noqa: PTH100  it must not follow links yet
        if os.path.exists(absolute):  # noqa: PTH110
            links.update(_links_to(absolute))
            shown.append(os.path.realpath(absolute))
    kept = tuple(shown)
    return shown, {link: target for link, target in links.items() if not any(_is_in(link, folder) for folder in kept)}


def _links_to(place: str) -> Iterator[tuple[str, str]]:
    """Yield the symbolic links on the way to a place, with their targets; also those on the way to the targets."""
    current = "/"
    parts = place.split("/")[1:]
    for number, part in enumerate(parts, 1):
        current = os.path.join(current, part)  # noqa: PTH118
        if os.path.islink(current):  # noqa: PTH114
            target = os.readlink(current)  # noqa: PTH115
            yield current, target
            before = os.path.join(os.path.dirname(current), target)  # noqa: PTH118, PTH120
            yield from _links_to(os.path.normpath(os.path.join(before, *parts[number:])))  # noqa: PTH118
            return


def _outermost(places: Iterable[str]) -> Iterator[str]:
    """Yield places that are in no other one, each once, in order."""
    last = ""
    for place in sorted(set(places), key=lambda place: place.split("/")):
        if not (last and _is_in(place, last)):
            last = place
            yield place


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")


def _texts(uid: int) -> dict[str, str]:
    """Return the few files that libraries look for under /etc."""
    return {
        "/etc/passwd": f"{USER}:x:{uid}:{uid}::{HOME}:/bin/sh\n",
        "/etc/group": f"{USER}:x:{uid}:\n",
        "/etc/hosts": f"127.0.0.1 localhost {socket.gethostname()}\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
