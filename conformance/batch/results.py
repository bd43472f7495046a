"""The folder of results of a course: a record for each submission, the gradebook, and the page of the class."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.batch.gradebook import Graded, class_page, gradebook
from conformance.batch.record import Record, read_json
from conformance.grading.formats.report_file import replace_text
from conformance.grading.rubric import Rubric
from pytest_ddp.errors import UsageError

MANIFEST, _GRADEBOOK, _CLASS_PAGE = "course.json", "gradebook.csv", "class.html"
RUBRIC = "rubric.toml"  # that of the last run: a later one takes its points, too
LOCK = ".lock"  # is locked while a grade writes to the folder
FILES = {MANIFEST, _GRADEBOOK, _CLASS_PAGE, RUBRIC, LOCK}  # no submission has such a name
_KEPT = "Nothing was changed: repeat the grade as it was, or give another folder to --out."
_SHOWN = 5  # names in a message


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
        known = read_json(out / MANIFEST)
        if not known:
            raise UsageError(f"{out} holds no results of a course: it has no {MANIFEST}")
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

    def begin(self, how: Mapping[str, str], rubric: Path | None = None) -> None:
        """Note who and what is graded, and how, so that the results can be found again.

        Args:
            how: what all grades of the course depend on, by the words for it.
            rubric: the file of the rubric, if there is one: it is kept for later runs.

        Raises:
            UsageError: the folder has results of others, or of a grade that differs in what it depends on.
        """
        known = read_json(self.out / MANIFEST)
        before = known.get("how", how)
        changed = [
            f"{name} was {before.get(name)!r} and is {how[name]!r}" for name in how if before.get(name) != how[name]
        ]
        if changed:
            raise UsageError(f"{self.out} holds results of another grade: {'; '.join(changed)}. {_KEPT}")
        others = {*known.get("names", ())} - {*self.names}
        if gone := sorted(name for name in others if self.record(name).folder.exists()):
            names = ", ".join([*gone[:_SHOWN], *(["..."] if len(gone) > _SHOWN else [])])
            raise UsageError(
                f"{self.out} holds results of {len(gone)} who are not among the submissions: {names}. {_KEPT} "
                "To take somebody out of the gradebook, delete the folder with these results."
            )
        manifest = {"names": self.names, "components": self.components, "how": how}
        replace_text(self.out / MANIFEST, json.dumps(manifest, indent=1))
        self.keep_rubric(rubric)

    def without_those_who_are_gone(self) -> tuple["Results", list[str]]:
        """Return these results without those whose folder was deleted, and their names."""
        gone = [name for name in self.names if not self.record(name).folder.exists()]
        return replace(self, names=tuple(name for name in self.names if name not in gone)), gone

    def hold_known(self) -> None:
        """Raise UsageError if nothing is known of somebody."""
        for name in self.names:
            self.record(name).known()

    def keep_rubric(self, rubric: Path | None) -> None:
        """Keep a rubric for later runs."""
        if rubric:
            replace_text(self.out / RUBRIC, rubric.read_text(encoding="utf-8"))

    def write_one(self, name: str, rubric: Rubric) -> Graded:
        """Write the report of one submission with the points of a rubric; return what it has."""
        record = self.record(name)
        return Graded.of(record.write(rubric), record.why)

    def write(self, rubric: Rubric) -> list[Graded]:
        """Write all reports with the points of a rubric, the gradebook and the class page; return who has what."""
        submissions = [self.write_one(name, rubric) for name in self.names]
        replace_text(self.out / _GRADEBOOK, gradebook(submissions, self.components))
        replace_text(self.out / _CLASS_PAGE, class_page(submissions))
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
    if MANIFEST not in there:
        raise UsageError(f"--out {out}: this folder holds something else than results; give a new one")
    if not resume:
        raise UsageError(
            f"--out {out}: there are results in this folder already; add --resume to go on with them (what is graded "
            "is not graded again), or give another folder"
        )
