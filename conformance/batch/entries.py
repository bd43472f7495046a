"""Finds the submissions of a course: folders, archives, or the rows of a roster."""

import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from shutil import copyfile

from conformance.batch.archives import ARCHIVES, unpacked
from conformance.batch.folders import content_files, remove_tree
from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """One submission of a course.

    Attributes:
        name: of the student or team, unique, fit to be the name of a folder.
        path: a folder, an archive, a folder with nothing but an archive, or an adapters' file.
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
        """Return the archive that this is, or the only one in its folder: so course systems export uploads."""
        inside = [one for one in self.path.iterdir() if one.name[0] not in "._"] if self.path.is_dir() else [self.path]
        return inside[0] if len(inside) == 1 and inside[0].is_file() and inside[0].name.endswith(ARCHIVES) else None

    def digest(self) -> str:
        """Return a digest of the content: another name or another place is the same submission.

        Raises:
            UsageError, OSError: not all of it can be read.
        """
        found = hashlib.sha256()
        for relative, file in sorted(content_files(self.path)):
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
        UsageError: there is no such folder or file, or two submissions have one name.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of submissions")
    listed = _in_roster(folder, roster) if roster else _in_folder(folder)
    found = sorted(
        (one for one in listed if out is None or one.path.resolve() != out.resolve()), key=attrgetter("name")
    )
    for one, other in pairwise(found):
        if one.name == other.name:
            raise UsageError(f"two submissions are called {one.name}: {one.path} and {other.path}")
    if not found:
        raise UsageError(f"{folder} holds no submissions: each folder, .zip, .tar, .tar.gz or .py file in it is one")
    return found


def left_out(folder: Path, out: Path) -> list[str]:
    """Return the names of files in a folder of submissions that are none, such as archives of another kind."""
    known = {one.path for one in _in_folder(folder)} | {folder / out.name}
    return sorted(path.name for path in folder.iterdir() if path not in known and path.name[0] not in "._")


def _in_folder(folder: Path) -> Iterator[Entry]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir() or path.name.endswith((*ARCHIVES, ".py")):
            yield Entry(_name(re.sub(r"\.(zip|tar|tar\.gz|tgz|py)$", "", path.name)), path)


def _in_roster(folder: Path, roster: Path) -> Iterator[Entry]:
    try:
        with roster.open(encoding="utf-8-sig", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except OSError as error:
        raise UsageError(f"{roster}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{roster} is no CSV file in UTF-8: {error}") from None
    for number, row in enumerate(rows, start=2):
        if not row.get("name") or not row.get("path"):
            raise UsageError(f"{roster}:{number}: a roster has the columns `name` and `path`, both filled in")
        yield Entry(_name(row["name"]), folder / row["path"])


def _name(text: str) -> str:
    return re.sub(r"[^\w.,'()@ -]", "_", text.strip()).lstrip(".") or "_"
