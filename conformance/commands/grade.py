"""`pytest-ddp-grade PATH...`: grades submissions, one after another; without PATH, as a student grades their own."""

import argparse
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.commands import course, student
from conformance.commands.options import (
    COMMAND,
    SMALL_WORLD_SIZE,
    add_import_seconds,
    add_isolation,
    add_report_options,
    add_with,
    components,
    positive,
    report_files,
    rubric_of,
    world_size,
)
from conformance.commands.watch import grade_on_save
from conformance.execution.fork_servers import fork_servers
from conformance.execution.restart import restart
from conformance.grading.events import Event, Listener, Reports
from conformance.grading.formats import FORMATS
from conformance.grading.formats.console import ConsoleReport
from conformance.grading.formats.github import InActions, in_actions
from conformance.grading.formats.report_file import ReportFile
from conformance.grading.formats.student import StudentReport
from conformance.grading.progress import announce, progress
from conformance.grading.report import MAX_EXAMPLES, WORLD_SIZE
from conformance.grading.rubric import assigned
from conformance.submissions.location import locate
from pytest_ddp.errors import UsageError

if TYPE_CHECKING:
    from conformance.grading.grade import Grading

_SEED_BITS = 32
_SCRIPTS = Path("repro")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    repeat = f"`{COMMAND} replay FILE` repeats a failure."
    grade = commands.add_parser("grade", prog=COMMAND, description="Grade data-parallel code.", epilog=repeat)
    add = grade.add_argument
    about = "folder, .py file or module with adapter functions (the current folder, graded as a student's own)"
    add("paths", nargs="*", metavar="PATH", help=about)
    add("--world-size", type=int, metavar="N", help=f"ranks in the largest world ({WORLD_SIZE})")
    about = "names of the components to grade (those that the rubric names; else all, in the current folder but `both`)"
    add("--components", metavar="A,B", help=about)
    add_report_options(grade)
    add("--seed", type=int, metavar="S", help="the seed of an earlier grade, to repeat it (random)")
    add("--max-examples", type=int, default=MAX_EXAMPLES, metavar="N", help="scenarios per check (%(default)s)")
    add("--from-scratch", action="store_true", help="fail components that use torch's own implementation")
    about = "leave out extended checks, which give no points (in the current folder: the default)"
    add("--core", action="store_true", default=None, help=about)
    add("--extended", dest="core", action="store_false", help="run extended checks too, in the current folder")
    about = f"use little memory: --core, --world-size {SMALL_WORLD_SIZE}, and ranks that hash texts alike"
    add("--small", action="store_true", help=about)
    add_with(grade)
    add_isolation(grade)
    about = "a package that submissions wrap: what it refuses, they refuse; repeatable"
    add("--library", action="append", default=[], metavar="PACKAGE", help=about)
    about = "run wrapper and optimizer checks on simulated ranks first; a failure counts if real ranks show it too"
    add("--simulate", action="store_true", help=about)
    add_import_seconds(grade)
    add("--watch", action="store_true", help="grade the current folder again whenever a Python file in it is saved")
    course.add_options(grade)
    add("--repro-dir", type=Path, metavar="DIR", help=f"folder for scripts of failures ({_SCRIPTS})")
    grade.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.out:
        return course.grade_submissions(options)
    course.hold_without_out(options)
    if student.is_student(options):
        student.fill_in(options)
    elif options.watch:
        raise UsageError("--watch grades the current folder: change to the submission's folder, and leave out the path")
    return _watch(options) if options.watch else _grade(options)


def _grade(options: argparse.Namespace) -> int:
    """Check what can be checked without torch, then grade one submission after another."""
    reports = Reports()
    files = report_files(options, reports)
    _check(options, anything_written=bool(files))
    for file in files:
        file.hold_writable()
    if options.restarts:
        announce()
        restart(options.given, small=options.small)
    shown_as = progress(verdicts=student.is_student(options))
    with shown_as as shown, fork_servers(options.isolation, small=options.small) as launcher:
        from conformance.grading.grade import grade  # noqa: PLC0415  imports torch, while the servers do too
        from conformance.judging.draws import nothing_kept  # noqa: PLC0415  as above

        grading = _grading(options)
        printed: Listener = ConsoleReport(reports)
        if student.is_student(options):
            printed = StudentReport(reports)
        printed = InActions(printed, reports) if in_actions() else printed
        with nothing_kept():
            _report(grade(options.paths, grading, launcher), [reports, shown, printed, *files], files)
    return max(report.exit_code for report in reports.reports)


def _watch(options: argparse.Namespace) -> int:
    """Grade the current folder again and again."""
    if given := [form.option for form in FORMATS if vars(options)[form.option]]:
        raise UsageError(f"{given[0]}: --watch writes no file; grade without it")
    _check(options)
    location = locate(student.HERE)
    if options.restarts:
        announce()
        restart(options.given, small=options.small)
    sys.stdout.write("Starting rank processes ...\n")
    sys.stdout.flush()
    with fork_servers(options.isolation, small=options.small) as launcher:
        from conformance.grading.grade import grade  # noqa: PLC0415  as in `_grade`
        from conformance.judging.draws import nothing_kept  # noqa: PLC0415  as in `_grade`

        with nothing_kept():
            return grade_on_save(lambda now: grade(options.paths, now, launcher), _grading(options), location)


def _check(options: argparse.Namespace, *, anything_written: bool = False) -> None:
    """Raise UsageError for an option that is wrong, or if no path is right and no file is to say so."""
    misplaced = [wrong for path in options.paths if (wrong := _misplaced(path))]
    if len(misplaced) == len(options.paths) and not anything_written:
        raise UsageError("\n".join(misplaced))
    student.hold_extended(options)
    positive("--max-examples", options.max_examples)
    positive("--import-seconds", options.import_seconds)


def _grading(options: argparse.Namespace) -> "Grading":
    from conformance.components.registry import BY_DEFAULT  # noqa: PLC0415  imports torch
    from conformance.grading.grade import Grading  # noqa: PLC0415  as above

    rubric = rubric_of(options)
    asked = components(options, rubric)
    return Grading(
        secrets.randbits(_SEED_BITS) if options.seed is None else options.seed,
        world_size(options),
        asked or (assigned() if student.is_student(options) else BY_DEFAULT),
        options.max_examples,
        options.repro_dir or _SCRIPTS,
        options.from_scratch,
        student.core_only(options, rubric),
        tuple(options.library),
        options.import_seconds,
        rubric,
        asked not in {(), assigned()},
        simulate=options.simulate,
        packages=options.packages,
    )


def _report(events: Iterator[Event], listeners: Sequence[Listener], files: Sequence[ReportFile]) -> None:
    """Let listeners hear every event in their order; where the grade is interrupted, save what there is."""
    try:
        for event in events:
            for listener in listeners:
                listener(event)
    except BaseException:
        for file in files:
            file.write()
        raise


def _misplaced(path: str) -> str:
    """Say what is wrong with a path, if anything."""
    try:
        locate(path)
    except UsageError as error:
        return str(error)
    return ""
