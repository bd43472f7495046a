"""Finds the submissions of a course: folders, archives, or the rows of a roster."""

import csv
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from shutil import copyfile

from conformance.batch.archives import ARCHIVES, hold_limits, is_archive, unpacked
from conformance.batch.folders import content_files, remove_tree
from conformance.batch.results import FILES
from conformance.submissions.location import is_template, only_folder, shown
from pytest_ddp.errors import UsageError

_LARGER = 10  # times the limits of an archive: a folder may hold what its student has trained
_UNSAFE = set('/\\<>:"|?*')  # in names of folders, here or on the machines of staff


@dataclass(frozen=True)
class Entry:
    """One submission of a course.

    Attributes:
        name: of the student or team, unique, fit to be the name of a folder.
        path: a folder, an archive, a folder with an archive and no code, or an adapters' file.
    """

    name: str
    path: Path

    def folder(self, place: Path) -> Path:
        """Return what to grade, in the folder `place` if it is no folder: nothing beside a file belongs to it.

        Raises:
            UsageError: it is not there, or of no kind that can be graded, or an archive must not be unpacked.
        """
        if not self.path.exists():
            raise UsageError(f"{self.path} is not there")
        archive = self._archive()
        if archive is None and self.path.is_file() and self.path.suffix != ".py":
            raise UsageError(f"{self.path.name} is neither a folder nor a {', '.join(ARCHIVES)} or .py file")
        if self.path.is_dir() and not archive:
            return self.path
        remove_tree(place)
        place.mkdir(parents=True)
        return unpacked(archive, place) if archive else Path(copyfile(self.path, place / self.path.name))

    def _archive(self) -> Path | None:
        """Return the archive that this is, or the only one in its folder: so course systems export uploads.

        Raises:
            UsageError: its folder has several archives, and no code.
        """
        inside = shown(only_folder(self.path)) if self.path.is_dir() else [self.path]
        archives = sorted(one for one in inside if is_archive(one.name) and self._has(one) and one.is_file())
        if any(one.is_dir() or one.suffix == ".py" for one in inside) or not archives:
            return None
        if len(archives) > 1:
            names = " and ".join(one.name for one in archives)
            raise UsageError(f"{self.path.name} holds {names}: only one of them can be graded; remove the others")
        return archives[0]

    def _has(self, path: Path) -> bool:
        """Whether something in its folder is its own, and no link to what somebody else has handed in."""
        return path.resolve().is_relative_to(self.path.resolve())

    def digest(self) -> str:
        """Return a digest of the content: another name or another place is the same submission.

        Raises:
            UsageError, OSError: it is too large, or not all of it can be read.
        """
        found, files = hashlib.sha256(), sorted(content_files(self.path))
        size = sum(file.stat().st_size for _, file in files)
        hold_limits(self.path.name, [Path(relative) for relative, _ in files], size, _LARGER)
        for relative, file in files:
            found.update(f"{relative}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
        return found.hexdigest()


def entries(folder: Path, roster: Path | None = None, out: Path | None = None) -> list[Entry]:
    """Return the submissions in a folder, or those that a roster names, by name.

    Args:
        folder: each subfolder, archive and `.py` file in it is a submission.
        out: the folder of results, which is no submission.
        roster: a CSV file with the columns `name` and `path`; paths are relative to `folder`.

    Raises:
        UsageError: there is no such folder or file, two submissions have one name, or the results would lie in one.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of submissions")
    listed = _in_roster(folder, roster) if roster else _in_folder(folder)
    found = sorted(
        (one for one in listed if out is None or one.path.resolve() != out.resolve()), key=attrgetter("name")
    )
    if twice := [
        f"{one.name}: {one.path} and {other.path}" for one, other in pairwise(found) if one.name == other.name
    ]:
        way_out = "Remove one of the two, or give a roster with other names."
        raise UsageError("\n  ".join(["two submissions have one name", *twice, way_out]))
    if not found:
        where = f"{roster} names" if roster else f"{folder} holds"
        raise UsageError(f"{where} no submissions: each folder, {', '.join(ARCHIVES)} or .py file is one")
    if within := [one.path for one in found if out and out.resolve().is_relative_to(one.path.resolve())]:
        raise UsageError(f"--out {out} lies in a submission, {within[0]}: results would change it; give another folder")
    return found


def left_out(folder: Path, found: Sequence[Entry], beside: Sequence[Path | None]) -> list[str]:
    """Return the names of what lies in a folder of submissions and is none: archives of another kind, or not listed.

    Args:
        folder: the folder of submissions.
        found: the submissions.
        beside: other files and folders of the course, which may lie there: results, roster, rubric.
    """
    known = {_absolute(path) for path in (*(one.path for one in found), *filter(None, beside))}
    known |= {parent for path in known for parent in path.parents}
    return sorted(path.name for path in _absolute(folder).iterdir() if path not in known and path.name[0] not in "._")


def _absolute(path: Path) -> Path:
    """Return the absolute path without `..`; links stay."""
    return Path(os.path.normpath(path.absolute()))


def _in_folder(folder: Path) -> Iterator[Entry]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):
            continue
        if (path.is_dir() and not is_template(path)) or is_archive(path.name) or path.suffix == ".py":
            yield Entry(_name(re.sub(r"(?i)\.(zip|tar|tar\.(gz|bz2|xz)|tgz|py)$", "", path.name)), path)


def _in_roster(folder: Path, roster: Path) -> Iterator[Entry]:
    try:
        with roster.open(encoding="utf-8-sig", newline="") as opened:
            header, *rows = list(csv.reader(opened)) or [[]]
    except OSError as error:
        raise UsageError(f"{roster}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{roster} is no CSV file in UTF-8: {error}") from None
    columns = [text.strip().lower() for text in header]
    if columns.count("name") != 1 or columns.count("path") != 1:
        seen = f"its first line is {','.join(header)!r}"
        raise UsageError(f"{roster}: a roster has a column `name` and a column `path`, separated by commas; {seen}")
    for number, row in enumerate(rows, start=2):
        cells = dict(zip(columns, (text.strip() for text in row), strict=False))
        if any(cells.values()):
            yield Entry(*_listed(cells.get("name", ""), cells.get("path", ""), folder, f"{roster}:{number}"))


def _listed(name: str, path: str, folder: Path, line: str) -> tuple[str, Path]:
    """Return the name and the place of a submission that a roster names; raise UsageError if one of them is none."""
    if not name or not path or "\0" in path:
        raise UsageError(f"{line}: a roster has a name and a path in each row; seen: {name!r} and {path!r}")
    return _name(name), folder / path


def _name(text: str) -> str:
    """Return a name fit to be that of a folder: the same, but for signs that mean something there, or are not seen."""
    known = unicodedata.normalize("NFC", text.strip())
    signs = ("_" if one in _UNSAFE or (unicodedata.category(one)[0] in "CZ" and one != " ") else one for one in known)
    name = "".join(signs).lstrip(".") or "_"
    return f"{name}_" if name in FILES else name
