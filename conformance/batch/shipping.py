"""Grades a submission on another machine: its files go there as bytes, and what the grader writes comes back.

Nothing here knows which engine carries the bytes. The other machine has a folder of its own for the run:

    ROOT/submission/NAME    the submission
    ROOT/results/           part.json and scripts/, as the grader writes them
    ROOT/log.txt, ROOT/tmp  what it prints, and its temporary files

Where a text that comes back names a path of ROOT, it gets the path that a run on this machine would name.
"""

import io
import os
import shutil
import tarfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from tempfile import TemporaryDirectory, gettempdir
from typing import Literal, NamedTuple

import psutil

from conformance.batch.archives import hold_limits, unpacked
from conformance.batch.executor import Job, grade_command
from conformance.batch.folders import content_files, is_left_out
from conformance.batch.graders import Graders, cut
from conformance.batch.record import SCRIPTS
from conformance.grading.formats.report_file import replace_text
from conformance.reproduction.files import remove_stale
from conformance.submissions.location import Location
from pytest_ddp.errors import UsageError

_ROOT = "pytest-ddp-grade-"
_QUICK = 1  # the level of compression


@dataclass(frozen=True)
class Shipment:
    """A job as another machine gets it.

    Attributes:
        name: of the submission's folder or file.
        archive: its files, as a tar archive.
        arguments: of the job.
        limit: in seconds.
        versions: which Python, torch and pytest-ddp must be there.
    """

    name: str
    archive: bytes
    arguments: tuple[str, ...]
    limit: float
    versions: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, folder: Path) -> "Shipment":
        """Pack a job and its submission; raise UsageError or OSError if it cannot be sent."""
        return cls(folder.name, packed(folder), job.arguments, job.limit, versions())


class Update(NamedTuple):
    """What is new of a run on another machine.

    Attributes:
        node: the name of the machine.
        root: the run's folder there.
        below: the path from a folder of scripts to those of this run, as the other machine has it.
        state: whether the grader runs, has ended, or was killed at its limit.
        log: what it has printed since the last update.
        files: the files that it has written since then, by their paths in `results`.
    """

    node: str
    root: str
    below: str
    state: Literal["runs", "ended", "cut off"]
    log: bytes
    files: Mapping[str, bytes]


def versions() -> dict[str, str]:
    """Return what must be the same on all machines, so that they give the same grades."""
    return {"Python": python_version(), "torch": version("torch"), "pytest-ddp": version("pytest-ddp")}


def packed(submission: Path) -> bytes:
    """Return a tar archive of a folder or a file, within the limits of archives; links become what they lead to.

    Raises:
        UsageError: it is too large, or a link in it leads to a folder or outside.
    """
    _hold_links(submission)
    files = list(content_files(submission))
    size = sum(file.stat().st_size for _, file in files)
    hold_limits(submission.name, [Path(submission.name, relative) for relative, _ in files], size)
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz", compresslevel=_QUICK, dereference=True) as archive:
        if submission.is_dir():
            archive.addfile(_folder(submission.name))
        for relative, file in files:
            archive.add(file, str(Path(submission.name, relative)), recursive=False)
    return found.getvalue()


def _folder(name: str) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode = tarfile.DIRTYPE, 0o755
    return found


def _hold_links(submission: Path) -> None:
    for path in submission.rglob("*"):
        if not path.is_symlink() or not path.exists() or is_left_out(relative := path.relative_to(submission)):
            continue
        if path.is_dir() or not path.resolve().is_relative_to(submission):
            where = "to a folder" if path.is_dir() else "that leads outside"
            raise UsageError(f"{submission.name} holds a link {where}, {str(relative)!r}: no other machine can get it")


def graded(shipment: Shipment, graders: Graders, node: str) -> Generator[Update]:
    """Grade a submission on this machine, the other one; yield what is new whenever a component has ended.

    Raises:
        UsageError: this machine has another version of Python, torch or pytest-ddp, or refuses required sandboxes.
    """
    _hold_versions(shipment, node)
    if " --isolation require " in f" {' '.join(shipment.arguments)} ":
        hold_sandboxes(small="--small" in shipment.arguments)
    _remove_left_behind()
    with TemporaryDirectory(prefix=f"{_ROOT}{os.getpid()}-") as root:
        run = _Run(Path(root).resolve(), node, _unpacked(shipment, Path(root).resolve()))
        yield run.update("runs")
        command = grade_command(shipment.arguments, run.submission, run.part, run.results / SCRIPTS)
        ended = False
        with closing(graders.run(command, run.log, run.root / "tmp", shipment.limit)) as states:
            for ended in states:
                if not ended and run.has_news():
                    yield run.update("runs")
        yield run.update("ended" if ended else "cut off")


@cache
def hold_sandboxes(*, small: bool) -> None:
    """Raise UsageError if this machine refuses sandboxes."""
    from conformance.execution.fork_servers import fork_servers  # noqa: PLC0415  imports torch
    from conformance.grading.grade import hold_required  # noqa: PLC0415  as above

    with fork_servers("require", small=small) as launcher:
        hold_required(launcher)


def _remove_left_behind() -> None:
    """Remove the folders of processes that were killed."""
    for root in Path(gettempdir()).glob(f"{_ROOT}*-*"):
        process = root.name.removeprefix(_ROOT).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(root, ignore_errors=True)


def _hold_versions(shipment: Shipment, node: str) -> None:
    here = versions()
    for name, wanted in shipment.versions.items():
        if here[name] != wanted:
            raise UsageError(f"{node} has {name} {here[name]}, and this machine {wanted}: grades need the same on all")


def _unpacked(shipment: Shipment, root: Path) -> Path:
    archive, place = root / "submission.tar.gz", root / "submission"
    archive.write_bytes(shipment.archive)
    place.mkdir()
    unpacked(archive, place)
    archive.unlink()
    return place / shipment.name


@dataclass
class _Run:
    """One run on this machine, and what of it has been told."""

    root: Path
    node: str
    submission: Path

    def __post_init__(self) -> None:
        self.results.mkdir()
        self.log.touch()
        self._told: dict[Path, tuple[int, int]] = {}
        self._log_told = 0
        self._below = str(scripts_below(self.submission.parent))

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def part(self) -> Path:
        return self.results / "part.json"

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    def has_news(self) -> bool:
        """Whether the grader has written another part."""
        return self.part.exists() and _stamp(self.part) != self._told.get(self.part)

    def update(self, state: Literal["runs", "ended", "cut off"]) -> Update:
        """Return what has not been told yet."""
        with self.log.open("rb") as opened:
            opened.seek(min(self._log_told, self.log.stat().st_size))
            log = opened.read()
            self._log_told = opened.tell()
        files = dict(self._news())
        return Update(self.node, str(self.root), self._below, state, log, files)

    def _news(self) -> Iterator[tuple[str, bytes]]:
        for file in self.results.rglob("[!.]*"):
            if file.is_file() and self._told.get(file) != (stamp := _stamp(file)):
                self._told[file] = stamp
                yield str(file.relative_to(self.results)), file.read_bytes()


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def scripts_below(submission: Path) -> Path:
    """Return where a grade writes the scripts of a submission, below the folder for scripts."""
    return Location(str(submission), "", file="").subfolder


@dataclass(frozen=True)
class Inbox:
    """Where the results of a job go on this machine.

    Attributes:
        job: the job.
        part: the file for its part of the record.
        folder: the folder of the submission, as a run on this machine would have it.
    """

    job: Job
    part: Path
    folder: Path

    def begin(self) -> None:
        """Remove the scripts of an earlier run, as a grader on this machine does."""
        scripts = self.job.record.folder / SCRIPTS
        remove_stale(Location(str(self.folder), "", file=""), self.job.components, scripts)

    def take(self, update: Update) -> None:
        """Write down what is new."""
        record = self.job.record
        log = record.folder / "log.txt"
        with log.open("ab") as opened:
            opened.write(self._here(update, update.log.decode(errors="replace")).encode())
        cut(log)
        for name, content in update.files.items():
            path = self._place(update, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, self._here(update, content.decode(errors="replace")))

    def note(self, words: str) -> None:
        """Add a line to the log."""
        with (self.job.record.folder / "log.txt").open("a", encoding="utf-8") as opened:
            opened.write(f"{words}\n")

    def _place(self, update: Update, name: str) -> Path:
        if name == "part.json":
            return self.part
        return self.job.record.folder / SCRIPTS / self._below / Path(name).relative_to(f"{SCRIPTS}/{update.below}")

    def _here(self, update: Update, text: str) -> str:
        """Return a text with the paths of this machine."""
        scripts = self.job.record.folder / SCRIPTS
        text = text.replace(f"{update.root}/results/{SCRIPTS}/{update.below}", str(scripts / self._below))
        return text.replace(f"{update.root}/submission", str(self.folder.parent))

    @property
    def _below(self) -> Path:
        return scripts_below(self.folder.parent)
