"""`pytest-ddp-grade SUBMISSIONS --out RESULTS`: grades all submissions of a course."""

import argparse
import sys
from pathlib import Path

from conformance.batch.entries import entries
from conformance.batch.progress import course_progress
from conformance.commands.options import components, positive, rubric_of, world_size
from conformance.grading.formats import FORMATS
from conformance.grading.report import PASSED
from pytest_ddp.errors import UsageError


def add_options(grade: argparse.ArgumentParser) -> None:
    """Add the options that belong to `--out`."""
    add = grade.add_argument
    about = "grade all submissions in the folder PATH; write results to this folder"
    add("--out", type=Path, metavar="DIR", help=about)
    add("--jobs", type=int, default=1, metavar="N", help="with --out: submissions at the same time (%(default)s)")
    add("--limit", type=int, default=1800, metavar="N", help="with --out: seconds for one submission (%(default)s)")
    add("--roster", type=Path, metavar="FILE", help="with --out: a CSV file with the columns name and path")


def grade_submissions(options: argparse.Namespace) -> int:
    """Grade all submissions in a folder, each in a process tree of its own."""
    if len(options.paths) != 1:
        raise UsageError("--out: give one folder, which holds the submissions")
    if given := [form.option for form in FORMATS if vars(options)[form.option]]:
        raise UsageError(f"{given[0]} is for one grade: --out writes report.json and report.html for each submission")
    if options.seed is None:
        raise UsageError("--out: give --seed, so that all submissions, and a later run, get the same scenarios")
    from conformance.batch.course import Course, grade_course  # noqa: PLC0415  imports torch with the components

    course = Course(
        entries(Path(options.paths[0]), options.roster),
        options.out,
        components(options.components),
        options.seed,
        tuple(_passed_on(options)),
        positive("--limit", options.limit),
        rubric_of(options),
    )
    with course_progress(len(course.entries), course.rubric) as ended:
        grade_course(course, positive("--jobs", options.jobs), ended)
    sys.stdout.write(f"{options.out / 'gradebook.csv'}\n{options.out / 'class.html'}\n")
    return PASSED


def _passed_on(options: argparse.Namespace) -> list[str]:
    """Return the options that the grade of each submission gets."""
    passed_on = ["--world-size", str(world_size(options)), "--max-examples"]
    passed_on += [str(positive("--max-examples", options.max_examples))]
    passed_on += ["--import-seconds", str(positive("--import-seconds", options.import_seconds))]
    passed_on += ["--isolation", options.isolation]
    passed_on += ["--core"] * bool(options.core) + ["--small"] * options.small
    passed_on += ["--from-scratch"] * options.from_scratch
    for option, values in (("--library", options.library), ("--with", options.packages)):
        passed_on += [word for value in values for word in (option, value)]
    return passed_on
