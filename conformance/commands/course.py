"""`pytest-ddp-grade SUBMISSIONS --out RESULTS`: grades all submissions of a course."""

import argparse
import errno
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from conformance.batch.entries import entries, left_out
from conformance.batch.graders import WarmProcess
from conformance.batch.progress import course_progress
from conformance.batch.results import MANIFEST, RUBRIC, Results, require_new
from conformance.commands import student
from conformance.commands.options import components, positive, rubric_of, world_size
from conformance.grading.formats import FORMATS
from conformance.grading.report import PASSED
from conformance.grading.rubric import assigned
from conformance.sandbox.plan import NAMESPACES
from conformance.submissions.location import is_template
from pytest_ddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.batch.entries import Entry
    from conformance.batch.executor import BatchExecutor
    from conformance.batch.gradebook import Graded
    from conformance.batch.progress import CourseProgress
    from conformance.grading.grade import Grading
    from conformance.grading.rubric import Rubric

_LIMIT = 1800  # seconds
_BYTES_OF_A_JOB = {False: 1.8e9, True: 0.6e9}  # the most that a right submission took, without and with --small
_CGROUP = Path("/sys/fs/cgroup")  # that of a container
_FAULTS_OF_A_FOLDER = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG),
}


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
    student.hold_extended(options)
    found = entries(Path(options.paths[0]), options.roster, options.out)
    require_new(options.out, resume=bool(options.resume))
    others = left_out(Path(options.paths[0]), found, (options.out, options.roster, options.rubric))
    say_left_out(others, Path(options.paths[0]), options.roster)
    with naming_faults_of(options.out):
        if options.executor == "ray":
            _grade_found(options, found, None)
        else:
            with closing(WarmProcess.started(small=options.small)) as warm:  # it starts while this one imports torch
                _grade_found(options, found, warm)
    say_left_out(others, Path(options.paths[0]), options.roster)
    return PASSED


def say_left_out(others: "Sequence[str]", folder: Path, roster: Path | None) -> None:
    """Say what lies among the submissions in a folder and is none."""
    why = f"not in {roster}" if roster else "no folder, archive or .py file"
    if packages := [name for name in others if is_template(folder / name)]:
        sys.stderr.write(f"conformance: {packages[0]} is no submission: those beside it import this package\n")
    if others := [name for name in others if name not in packages]:
        sys.stderr.write(f"conformance: left out, and not in the gradebook, since {why}: {', '.join(others)}\n")


@contextmanager
def naming_faults_of(out: Path) -> "Iterator[None]":
    """Raise UsageError where the folder of results cannot be written to: its disk is full, or it is somebody else's."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename or out)
        if error.errno not in _FAULTS_OF_A_FOLDER or not where.absolute().is_relative_to(out.absolute()):
            raise
        again = "put that right, and repeat the command, with --resume if the grade had begun"
        raise UsageError(f"{where} cannot be written: {error.strerror}; {again}") from None


def _grade_found(options: argparse.Namespace, found: "list[Entry]", warm: WarmProcess | None) -> None:
    from conformance.batch.course import Course, grade_course  # noqa: PLC0415  imports torch with the components
    from conformance.batch.shipping import hold_sandboxes  # noqa: PLC0415  as above

    limit = _LIMIT if options.limit is None else positive("--limit", options.limit)
    if options.rubric is None and (options.out / RUBRIC).is_file():
        options.rubric = options.out / RUBRIC
        sys.stderr.write(f"conformance: points are those of {options.rubric}, the rubric of the last run\n")
    passed_on, packages = tuple(_passed_on(options)), tuple(options.packages)
    course = Course(found, options.out, _grading(options), passed_on, packages, limit, options.rubric)
    if options.components is None and not options.rubric and not options.resume:
        asked = course.grading.components
        sys.stderr.write(f"conformance: no --components and no --rubric: {len(asked)} are graded, {', '.join(asked)}\n")
    if warm:
        say_memory_of(min(options.jobs or 1, len(found)), small=options.small)
    if options.isolation == "require" and warm:
        hold_sandboxes(small=options.small)
    with course_progress() as progress:
        submissions = grade_course(course, _executor(options, course.grading, progress, warm), progress)
    show_course(submissions, options.out)
    say_without_namespaces(submissions, options.isolation)


def say_without_namespaces(submissions: "Sequence[Graded]", isolation: str) -> None:
    """Say how many submissions ran without namespaces."""
    found = [one.report.environment.isolation for one in submissions]
    without = sum(bool(one) and NAMESPACES not in one for one in found)
    if without and isolation != "none":
        sys.stderr.write(
            f"conformance: {without} of {len(found)} submissions had no namespaces of their own, since this machine "
            "refuses them: they could read what you may read. `--isolation require` ends the grade instead\n"
        )


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


def say_memory_of(jobs: int, *, small: bool) -> None:
    """Say if that many submissions may need more memory together than is free."""
    free, each = _free_bytes(), _BYTES_OF_A_JOB[small]
    if jobs > 1 and jobs * each > free:
        sys.stderr.write(
            f"conformance: --jobs {jobs}: right submissions take {each / 1e9:g} GB each, and {free / 1e9:.1f} GB are "
            f"free here, so the system may kill graders; give --jobs {max(1, int(free / each))}\n"
        )


def _free_bytes() -> int:
    """Return the bytes of memory that are free here, in a container too."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no cgroup, or one without a limit
        most, used = (int((_CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free


def _grading(options: argparse.Namespace) -> "Grading":
    from conformance.grading.grade import Grading  # noqa: PLC0415  imports torch

    rubric = rubric_of(options)
    return Grading(
        options.seed,
        world_size(options),
        asked_components(options, rubric),
        positive("--max-examples", options.max_examples),
        from_scratch=options.from_scratch,
        core=bool(options.core) or options.small,
        libraries=tuple(options.library),
        import_seconds=positive("--import-seconds", options.import_seconds),
        rubric=rubric,
        named=components(options, rubric) not in {(), assigned()},
        simulate=options.simulate,
        packages=tuple(options.packages),
    )


def asked_components(options: argparse.Namespace, rubric: "Rubric") -> tuple[str, ...]:
    """Return the components of earlier runs, and those that are asked for now."""
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    before = Results.found(options.out).components if options.resume and (options.out / MANIFEST).is_file() else ()
    if before and options.components is None and options.rubric == options.out / RUBRIC:
        return before  # the rubric of the last run may have points for others, too
    asked = components(options, rubric) or before or assigned()
    return tuple(name for name in COMPONENTS if name in {*before, *asked})


def _passed_on(options: argparse.Namespace) -> list[str]:
    """Return the options that the grade of each submission gets, but for `--with`."""
    passed_on = ["--world-size", str(world_size(options)), "--max-examples", str(options.max_examples)]
    passed_on += ["--import-seconds", str(options.import_seconds)]
    passed_on += ["--isolation", options.isolation]
    passed_on += ["--core"] * bool(options.core) + ["--small"] * options.small
    passed_on += ["--from-scratch"] * options.from_scratch + ["--simulate"] * options.simulate
    return passed_on + [word for name in options.library for word in ("--library", name)]
