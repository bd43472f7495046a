"""Keeps a file up to date with the reports, from the beginning of a grade to its end."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conformance.grading.events import CheckEnded, ComponentEnded, Event, GradeBegan, Reports, SubmissionEnded
from conformance.grading.report import Report
from pytest_ddp.errors import UsageError


class Format(NamedTuple):
    """A form of the report, and the option that asks for it.

    Attributes:
        option: the option of the command line, which takes the path of the file.
        text: makes the text of the reports of all submissions; it must be valid at any time of the grade.
        help: the help text of the option.
        after_checks: whether a service may end the grade and take the file as it is: it has what is judged by then.
    """

    option: str
    text: Callable[[Sequence[Report]], str]
    help: str
    after_checks: bool = False


@dataclass
class ReportFile:
    """Writes a report to a file whenever a component ends, or a check; a listener that `reports` precedes.

    A grade may be killed at any time: the file is always a whole report, of what had ended by then.
    """

    path: Path
    format: Format
    reports: Reports

    def __call__(self, event: Event) -> None:
        """Take in one event; raise UsageError if the file cannot be written."""
        ended = isinstance(event, GradeBegan | ComponentEnded | SubmissionEnded)
        if ended or (self.format.after_checks and isinstance(event, CheckEnded)):
            self.write()

    def hold_writable(self) -> None:
        """Raise UsageError if the file cannot be written; what is in it stays."""
        with self._naming_faults():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path))
            if self.path.is_file() or not self.path.exists():
                _unfinished(self.path.resolve()).touch()
                _unfinished(self.path.resolve()).unlink()

    def write(self) -> None:
        """Write what is known, over what was written before; raise UsageError if the file cannot be written."""
        with self._naming_faults():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, self.format.text(self.reports.reports))

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"{self.format.option} {self.path}: {error.strerror}: {error.filename}") from None


def replace_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of the old text or all of the new; raise OSError.

    That also holds after a loss of power: the new text is on the disk before it takes the place of the old one.
    Names of files may have bytes that are no UTF-8: they are escaped.
    """
    content, path = text.encode(errors="backslashreplace"), path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe keeps nothing that could be replaced
        path.write_bytes(content)
        return
    unfinished = _unfinished(path)
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
