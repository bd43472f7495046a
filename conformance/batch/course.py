"""Grades every submission of a course in a process tree of its own; goes on where an earlier grade was cut off."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import pytest_ddp
from conformance.batch.entries import Entry
from conformance.batch.executor import BatchExecutor, Job, Outcome
from conformance.batch.gradebook import Graded
from conformance.batch.progress import CourseProgress
from conformance.batch.record import PACKAGES
from conformance.batch.results import Results
from conformance.grading.grade import Grading, planned
from pytest_ddp.errors import UsageError

_PLUGIN = tuple(map(Path, pytest_ddp.__path__))
_RUNS = 3  # of the grader for one submission, if it dies
_GIVEN_UP = f"the grader ended {_RUNS} times before it was done", "see log.txt, and delete its folder to try again"


@dataclass(frozen=True)
class Course:
    """How a course is graded.

    Attributes:
        entries: its submissions.
        out: the folder of results: one folder for each submission, `gradebook.csv` and `class.html`.
        grading: how each of them is graded.
        options: what says the same to `pytest-ddp-grade`, but for seed, components, rubric and packages.
        packages: what `--with` names.
        limit: the seconds that one run for a submission may take.
        rubric: the file of the rubric, if one is given.
    """

    entries: Sequence[Entry]
    out: Path
    grading: Grading
    options: tuple[str, ...]
    packages: tuple[str, ...]
    limit: float
    rubric: Path | None = None

    @property
    def results(self) -> Results:
        """Where the results are."""
        return Results(self.out, tuple(entry.name for entry in self.entries), self.grading.components)

    @property
    def how(self) -> dict[str, str]:
        """What all grades depend on, by the words for it.

        The rubric is not part of it, since other points need no other grade, nor are the components, each of which is
        graded by itself.
        """
        return {
            "the seed": str(self.grading.seed),
            "the version of pytest-ddp": _version(),
            "the version of torch": version("torch"),
            "the version of Python": python_version(),
            "the options": " ".join(self.options),
        }

    def key(self, entry: Entry) -> dict[str, str]:
        """Return what the grade of one submission depends on besides, by the words for it."""
        return {"its content": entry.digest(), PACKAGES: " ".join(self.packages)}


def grade_course(course: Course, executor: BatchExecutor, progress: CourseProgress) -> list[Graded]:
    """Grade what is not graded yet; write the results and return them, by name."""
    with course.results.alone(), executor:
        course.results.begin(course.how, course.rubric)
        again: dict[str, list[str]] = {}
        left = [entry for entry in course.entries if _prepare(course, entry, again)]
        progress.planned(len(course.entries), len(left), again)
        try:
            for entry in left:
                executor.submit(_job(course, entry))
            for job, outcome in executor.as_completed():
                _settle(course, job, outcome, progress)
                if job.record.ungraded():
                    executor.submit(_job(course, job.entry, job.number + 1))
                else:
                    progress.ended(course.results.write_one(job.record.name, course.grading.rubric))
        except BaseException:
            executor.cancel()
            raise
        return course.results.write(course.grading.rubric)


@cache
def _version() -> str:
    """Return the version, with a digest of the code: a clone that follows the development keeps its number for long."""
    digests = (Entry(folder.name, folder).digest()[:12] for folder in (Path(__file__).parents[1], *_PLUGIN))
    return " ".join([version("pytest-ddp"), *digests])


def _prepare(course: Course, entry: Entry, again: dict[str, list[str]]) -> bool:
    """Begin the record of a submission, or find that of an earlier grade; return whether something is left to do.

    Where there is one that no longer holds, note in `again` what has changed.
    """
    record = course.results.record(entry.name)
    try:
        key, refused = course.key(entry), ""
    except (OSError, UsageError) as error:
        key, refused = {"its content": str(error)}, f"{entry.path.name} cannot be read: {error}"
    if changed := record.begin(key, course.limit):
        again.setdefault(" and ".join(changed), []).append(entry.name)
    record.plan(planned(str(entry.path), course.grading))
    if refused:
        record.settle(refused)
    return bool(record.ungraded())


def _job(course: Course, entry: Entry, number: int = 1) -> Job:
    """Return the run of the grader that is next for a submission: it grades the components that are left."""
    record = course.results.record(entry.name)
    components = record.ungraded()
    arguments = ("--components", ",".join(components), "--seed", str(course.grading.seed), *course.options)
    arguments += tuple(word for name in course.packages for word in ("--with", name))
    return Job(entry, record, components, arguments, course.limit, number)


def _settle(course: Course, job: Job, outcome: Outcome, progress: CourseProgress) -> None:
    """Note why a submission is not graded any further, if so; one that ends the grader again and again is given up."""
    if outcome.kind == "refused":
        job.record.settle(outcome.why)
    elif outcome.kind == "cut off":
        advice = "--resume with a larger --limit goes on"
        job.record.settle(f"cut off after {course.limit:g} s", advice, course.limit)
    elif outcome.kind == "lost":
        progress.lost(job.record, outcome.why)
    if job.number == _RUNS and job.record.ungraded():
        job.record.settle(*_GIVEN_UP)
