"""The folder of results of a course: a record for each submission, the gradebook, and the page of the class."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.batch.gradebook import Graded, class_page, gradebook
from conformance.batch.record import Record, read_json
from conformance.grading.formats.report_file import replace_text
from conformance.grading.rubric import Rubric
from pytest_ddp.errors import UsageError

_MANIFEST = "course.json"
LOCK = ".lock"  # is locked while a grade writes to the folder


@dataclass(frozen=True)
class Results:
    """Where the results of a course are.

    Attributes:
        out: the folder.
        names: the students or teams, sorted; each has a folder in `out`.
        components: the names of the components of the course.
    """

    out: Path
    names: tuple[str, ...]
    components: tuple[str, ...]

    @classmethod
    def found(cls, out: Path) -> "Results":
        """Return the results that are in a folder; raise UsageError if there are none."""
        known = read_json(out / _MANIFEST)
        if not known:
            raise UsageError(f"{out} holds no results of a course: it has no {_MANIFEST}")
        return cls(out, tuple(known["names"]), tuple(known["components"]))

    def record(self, name: str) -> Record:
        """Return the record of a submission."""
        return Record(name, self.out / name, self.components)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands from the folder; raise UsageError if one writes to it."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.out}: another grade writes to this folder at the moment") from None
            yield

    def begin(self) -> None:
        """Note who and what is graded, so that the results can be found again."""
        replace_text(self.out / _MANIFEST, json.dumps({"names": self.names, "components": self.components}, indent=1))

    def write_one(self, name: str, rubric: Rubric) -> Graded:
        """Write the report of one submission with the points of a rubric; return what it has."""
        record = self.record(name)
        return Graded.of(record.write(rubric), record.why)

    def write(self, rubric: Rubric) -> list[Graded]:
        """Write all reports with the points of a rubric, the gradebook and the class page; return who has what."""
        submissions = [self.write_one(name, rubric) for name in self.names]
        replace_text(self.out / "gradebook.csv", gradebook(submissions, self.components))
        replace_text(self.out / "class.html", class_page(submissions))
        return submissions


def require_new(out: Path, *, resume: bool) -> None:
    """Raise UsageError if a folder holds something that a new grade would mix with its results.

    Args:
        out: the folder of results.
        resume: whether to go on with the results that are there.
    """
    there = {path.name for path in out.iterdir()} - {LOCK} if out.is_dir() else set()
    if not there:
        return
    if _MANIFEST not in there:
        raise UsageError(f"--out {out}: this folder holds something else than results; give a new one")
    if not resume:
        raise UsageError(
            f"--out {out}: there are results in this folder already; add --resume to go on with them (what is graded "
            "is not graded again), or give another folder"
        )
