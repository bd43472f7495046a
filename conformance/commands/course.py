"""`pytest-ddp-grade SUBMISSIONS --out RESULTS`: grades all submissions of a course."""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.batch.entries import entries, left_out
from conformance.batch.graders import WarmProcess
from conformance.batch.progress import course_progress
from conformance.batch.results import require_new
from conformance.commands.options import components, positive, rubric_of, world_size
from conformance.execution.fork_servers import fork_servers
from conformance.grading.formats import FORMATS
from conformance.grading.report import PASSED
from conformance.grading.rubric import assigned
from pytest_ddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.batch.entries import Entry
    from conformance.batch.executor import BatchExecutor
    from conformance.batch.gradebook import Graded
    from conformance.batch.progress import CourseProgress
    from conformance.grading.grade import Grading


_LIMIT = 1800  # seconds


def add_options(grade: argparse.ArgumentParser) -> None:
    """Add the options that belong to `--out`."""
    add = grade.add_argument
    about = "grade all submissions in the folder PATH; write results to this folder"
    add("--out", type=Path, metavar="DIR", help=about)
    about = "with --out: submissions at the same time (1; with --executor ray, as many as keep the cluster busy)"
    add("--jobs", type=int, metavar="N", help=about)
    about = "with --out: grade on this machine, or on the nodes of a Ray cluster (local)"
    add("--executor", choices=("local", "ray"), help=about)
    about = "with --executor ray: the cluster (the one that Ray finds; else Ray is started here)"
    add("--ray-address", metavar="ADDRESS", help=about)
    about = "with --executor ray: what each submission gets, such as cpu=2,gpu=1,memory=2GiB (cpu=1)"
    add("--ray-request", metavar="A=N,...", help=about)
    add("--limit", type=int, metavar="N", help=f"with --out: seconds for one submission ({_LIMIT})")
    add("--roster", type=Path, metavar="FILE", help="with --out: a CSV file with the columns name and path")
    about = "with --out: go on with the results in DIR; what is graded is not graded again"
    add("--resume", action="store_true", default=None, help=about)


def hold_without_out(options: argparse.Namespace) -> None:
    """Raise UsageError if an option is given that only a course has."""
    for name in ("jobs", "executor", "ray_address", "ray_request", "limit", "roster", "resume"):
        if vars(options)[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for a course: give --out too, or leave it out")


def grade_submissions(options: argparse.Namespace) -> int:
    """Grade all submissions in a folder, each in a process tree of its own."""
    if options.watch:
        raise UsageError("--watch grades the current folder, and --out a course: leave one of them out")
    if options.repro_dir:
        raise UsageError("--repro-dir is for one grade: --out has a folder of scripts for each submission")
    if len(options.paths) != 1:
        raise UsageError("--out: give one folder, which holds the submissions")
    if given := [form.option for form in FORMATS if vars(options)[form.option]]:
        raise UsageError(f"{given[0]} is for one grade: --out writes report.json and report.html for each submission")
    if options.seed is None:
        raise UsageError("--out: give --seed, so that all submissions, and a later run, get the same scenarios")
    found = entries(Path(options.paths[0]), options.roster, options.out)
    require_new(options.out, resume=bool(options.resume))
    if options.roster is None and (others := left_out(Path(options.paths[0]), options.out)):
        sys.stderr.write(f"conformance: left out, since no folder, archive or .py file: {', '.join(others)}\n")
    if options.executor == "ray":
        return _grade_found(options, found, None)
    with closing(WarmProcess.started(small=options.small)) as warm:  # it starts while this process imports torch
        return _grade_found(options, found, warm)


def _grade_found(options: argparse.Namespace, found: "list[Entry]", warm: WarmProcess | None) -> int:
    from conformance.batch.course import Course, grade_course  # noqa: PLC0415  imports torch with the components
    from conformance.grading.grade import hold_required  # noqa: PLC0415  as above

    limit = _LIMIT if options.limit is None else positive("--limit", options.limit)
    course = Course(found, options.out, _grading(options), tuple(_passed_on(options)), tuple(options.packages), limit)
    if options.isolation == "require" and warm:
        with fork_servers("require", small=options.small) as launcher:
            hold_required(launcher)
    with course_progress() as progress:
        submissions = grade_course(course, _executor(options, course.grading, progress, warm), progress)
    show_course(submissions, options.out)
    return PASSED


def show_course(submissions: "Sequence[Graded]", out: Path) -> None:
    """Print a line for each submission, those at which a person should look at the end, and where the results are."""
    for one in sorted(submissions, key=lambda one: bool(one.look_at)):
        sys.stdout.write(f"{one}\n")
    look_at = sum(bool(one.look_at) for one in submissions)
    sys.stdout.write(f"{len(submissions)} submissions, {look_at} of them for a person to look at\n")
    sys.stdout.write(f"{out / 'gradebook.csv'}\n{out / 'class.html'}\n")


def _executor(
    options: argparse.Namespace, grading: "Grading", progress: "CourseProgress", warm: WarmProcess | None
) -> "BatchExecutor":
    """Return what runs the graders."""
    jobs = None if options.jobs is None else positive("--jobs", options.jobs)
    if options.executor == "ray":
        from conformance.batch.ray_executor import RayExecutor, ray_options  # noqa: PLC0415  an optional package

        request, address = ray_options(options.ray_request or ""), options.ray_address
        return RayExecutor(grading, jobs, progress.began, request, address, small=options.small)
    if given := [name for name in ("ray_address", "ray_request") if vars(options)[name]]:
        raise UsageError(f"--{given[0].replace('_', '-')} is for --executor ray")
    from conformance.batch.local_executor import LocalExecutor  # noqa: PLC0415  imports torch with the components

    return LocalExecutor(grading, jobs or 1, progress.began, small=options.small, warm=warm)


def _grading(options: argparse.Namespace) -> "Grading":
    from conformance.grading.grade import Grading  # noqa: PLC0415  imports torch

    rubric = rubric_of(options)
    return Grading(
        options.seed,
        world_size(options),
        components(options, rubric) or assigned(),
        positive("--max-examples", options.max_examples),
        from_scratch=options.from_scratch,
        core=bool(options.core) or options.small,
        libraries=tuple(options.library),
        import_seconds=positive("--import-seconds", options.import_seconds),
        rubric=rubric,
        simulate=options.simulate,
    )


def _passed_on(options: argparse.Namespace) -> list[str]:
    """Return the options that the grade of each submission gets, but for `--with`."""
    passed_on = ["--world-size", str(world_size(options)), "--max-examples", str(options.max_examples)]
    passed_on += ["--import-seconds", str(options.import_seconds)]
    passed_on += ["--isolation", options.isolation]
    passed_on += ["--core"] * bool(options.core) + ["--small"] * options.small
    passed_on += ["--from-scratch"] * options.from_scratch + ["--simulate"] * options.simulate
    return passed_on + [word for name in options.library for word in ("--library", name)]
