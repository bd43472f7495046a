"""Grades every submission of a course in a process tree of its own; goes on where an earlier grade was cut off."""

import fcntl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event

from conformance.batch.entries import Entry
from conformance.batch.gradebook import Graded
from conformance.batch.graders import Graders
from conformance.batch.progress import CourseProgress
from conformance.batch.record import Record
from conformance.batch.results import LOCK, Results
from conformance.grading.grade import Grading, planned
from pytest_ddp.errors import UsageError

_RUNS = 3  # of the grader for one submission, if it dies


@dataclass(frozen=True)
class Course:
    """How a course is graded.

    Attributes:
        entries: its submissions.
        out: the folder of results: one folder for each submission, `gradebook.csv` and `class.html`.
        grading: how each of them is graded.
        options: what says the same to `pytest-ddp-grade`, but for seed, components and rubric.
        limit: the seconds that one run for a submission may take.
    """

    entries: Sequence[Entry]
    out: Path
    grading: Grading
    options: tuple[str, ...]
    limit: float

    @property
    def results(self) -> Results:
        """Where the results are."""
        return Results(self.out, tuple(entry.name for entry in self.entries), self.grading.components)

    def key(self, entry: Entry) -> dict[str, str]:
        """Return what a grade depends on, by the words for it.

        The rubric is not part of it, since other points need no other grade, nor are the components, each of which is
        graded by itself.
        """
        return {
            "its content": entry.digest(),
            "the seed": str(self.grading.seed),
            "the version of pytest-ddp": version("pytest-ddp"),
            "the options": " ".join(self.options),
        }


def grade_course(course: Course, jobs: int, progress: CourseProgress) -> list[Graded]:
    """Grade what is not graded yet, `jobs` submissions at a time; write the results and return them, by name."""
    stop = Event()
    with (
        _alone(course.out),
        Graders(course.grading, stop, small="--small" in course.options) as graders,
        ThreadPoolExecutor(jobs) as pool,
    ):
        course.results.begin()
        again: dict[str, list[str]] = {}
        left = [entry for entry in course.entries if _prepare(course, entry, again)]
        progress.planned(len(course.entries), len(left), again)
        try:
            list(pool.map(lambda entry: _grade_one(course, graders, entry, progress), left))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        return course.results.write(course.grading.rubric)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other graders from a folder of results; raise UsageError if one is there."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out {out}: another grade writes to this folder at the moment") from None
        yield


def _prepare(course: Course, entry: Entry, again: dict[str, list[str]]) -> bool:
    """Begin the record of a submission, or find that of an earlier grade; return whether something is left to do.

    Where there is one that no longer holds, note in `again` what has changed.
    """
    record = course.results.record(entry.name)
    try:
        key = course.key(entry)
    except OSError as error:
        key = {"its content": str(error)}
    if changed := record.begin(key, course.limit):
        again.setdefault(" and ".join(changed), []).append(entry.name)
    record.plan(planned(str(entry.path), course.grading))
    return bool(record.ungraded())


def _grade_one(course: Course, graders: Graders, entry: Entry, progress: CourseProgress) -> None:
    if graders.stop.is_set():
        return
    record = course.results.record(entry.name)
    progress.began(record)
    try:
        folder = entry.folder(record.folder / "submission")
    except (UsageError, OSError) as error:
        record.settle(str(error))
    else:
        _grade_folder(course, graders, record, folder)
    if not graders.stop.is_set():
        progress.ended(course.results.write_one(entry.name, course.grading.rubric))


def _grade_folder(course: Course, graders: Graders, record: Record, folder: Path) -> None:
    """Run the grader until nothing is left to do; a submission that ends it again and again is given up."""
    for _ in range(_RUNS):
        left = record.ungraded()
        if not left or graders.stop.is_set():
            return
        if not _run(course, graders, record, folder, left):
            record.settle(f"cut off after {course.limit:g} s: --resume with a larger --limit goes on", course.limit)
    if record.ungraded() and not graders.stop.is_set():
        record.settle(f"the grader ended {_RUNS} times before it was done, see log.txt: delete its folder to try again")


def _run(course: Course, graders: Graders, record: Record, folder: Path, components: Sequence[str]) -> bool:
    """Run the grader on a submission once; return whether it ended within the limit, or was to stop."""
    arguments = ["grade", str(folder), "--components", ",".join(components), "--seed", str(course.grading.seed)]
    arguments += ["--json", str(record.next_part()), "--repro-dir", str(record.folder / "scripts"), *course.options]
    return graders.run(arguments, record.folder / "log.txt", record.temporary, course.limit)
