"""Grades every submission of a course in a process tree of its own; goes on where an earlier grade was cut off."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event

from conformance.batch.entries import Entry
from conformance.batch.gradebook import class_page, gradebook
from conformance.batch.record import Record
from conformance.grading.formats.report_file import replace_text
from conformance.grading.rubric import Rubric
from pytest_ddp.errors import UsageError

_OUTPUT_BYTES = 2**20  # of the log of a run that are kept
_ALONE = (  # the grader has a session of its own, and still ends with this process
    "import sys; from pytest_ddp.pool.parent_death import die_with; die_with({}); "
    "from conformance.cli import main; sys.exit(main())"
)
_RUNS = 3  # of the grader for one submission, if it dies


@dataclass(frozen=True)
class Course:
    """How a course is graded.

    Attributes:
        entries: its submissions.
        out: the folder of results: one folder for each submission, `gradebook.csv` and `class.html`.
        components: names of the components.
        seed: the seed of every grade.
        options: further options of `pytest-ddp-grade`.
        limit: the seconds that one run for a submission may take.
        rubric: the points.
    """

    entries: Sequence[Entry]
    out: Path
    components: tuple[str, ...]
    seed: int
    options: tuple[str, ...]
    limit: float
    rubric: Rubric

    def key(self, entry: Entry) -> str:
        """Return what a grade depends on. The rubric is not part of it: other points need no other grade."""
        parts = [entry.digest(), str(self.seed), version("pytest-ddp"), *self.components, *self.options]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def record(self, entry: Entry) -> Record:
        """Return the record of a submission."""
        return Record(entry.name, self.out / entry.name)


def grade_course(course: Course, jobs: int, ended: Callable[[Entry, Record], None]) -> None:
    """Grade what is not graded yet, `jobs` submissions at a time; then write the gradebook and the page of the class.

    Args:
        course: how.
        jobs: submissions at the same time.
        ended: is called when a submission has ended, in the thread that graded it.
    """
    stop = Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(lambda entry: ended(entry, _grade_one(course, entry, stop)), course.entries))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    write_results(course)


def write_results(course: Course) -> None:
    """Write the report of each submission with the points of the rubric, the gradebook and the page of the class."""
    reports, whys = {}, {}
    for entry in course.entries:
        record = course.record(entry)
        record.write(course.rubric)
        reports[entry.name], whys[entry.name] = record.pointed(course.rubric), record.why
    replace_text(course.out / "gradebook.csv", gradebook(reports, whys, course.components))
    replace_text(course.out / "class.html", class_page(reports, whys))


def _grade_one(course: Course, entry: Entry, stop: Event) -> Record:
    record = course.record(entry)
    try:
        folder = entry.folder(record.folder / "submission")
        record.begin(course.key(entry))
    except (UsageError, OSError) as error:
        record.begin("")
        record.settle(str(error))
        return record
    for _ in range(_RUNS):
        left = record.ungraded(course.components)
        if not left or stop.is_set():
            return record
        if why := _run(course, record, folder, left, stop):
            record.settle(why)
    if record.ungraded(course.components) and not stop.is_set():
        record.settle(
            f"the grader ended {_RUNS} times before it was done: see log.txt; delete {record.folder} to grade it again"
        )
    return record


def _run(course: Course, record: Record, folder: Path, components: Sequence[str], stop: Event) -> str:
    """Run the grader on a submission once; return why it must not run again, if so."""
    command = [sys.executable, "-P", "-c", _ALONE.format(os.getpid()), "grade", str(folder)]
    command += ["--components", ",".join(components)]
    command += ["--seed", str(course.seed), "--json", str(record.next_part())]
    command += ["--repro-dir", str(record.folder / "scripts"), *course.options]
    log = record.folder / "log.txt"
    with (
        log.open("ab") as opened,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=opened, stderr=subprocess.STDOUT, start_new_session=True
        ) as grader,
    ):
        waited, step = 0.0, 0.2
        try:
            while waited < course.limit and not stop.is_set():
                with suppress(subprocess.TimeoutExpired):
                    grader.wait(step)
                    break
                waited += step
        finally:
            ended = grader.poll() is not None
            with suppress(ProcessLookupError):
                os.killpg(grader.pid, signal.SIGKILL)
    _cut(log)
    return (
        ""
        if ended or stop.is_set()
        else f"{course.limit:g} s (--limit) were over: delete {record.folder} to grade it again, with a larger one"
    )


def _cut(log: Path) -> None:
    """Keep the end of a log that has grown too long."""
    if log.stat().st_size > _OUTPUT_BYTES:
        with log.open("rb") as opened:
            opened.seek(-_OUTPUT_BYTES, os.SEEK_END)
            end = opened.read()
        log.write_bytes(b"... the beginning is cut off\n" + end)
