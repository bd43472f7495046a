"""The command line: `pytest-ddp-grade PATH...`, and `pytest-ddp-grade replay FILE` for the file of a failure."""

import argparse
import json
import secrets
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from conformance.batch.entries import entries
from conformance.batch.progress import course_progress
from conformance.execution.deadlines import IMPORT_SECONDS
from conformance.execution.fork_servers import become_forkable, fork_servers, ranks_from
from conformance.grading.events import Event, Listener, Reports
from conformance.grading.formats import FORMATS
from conformance.grading.formats.console import ConsoleReport, show
from conformance.grading.formats.github import InActions, in_actions
from conformance.grading.formats.report_file import ReportFile
from conformance.grading.progress import progress
from conformance.grading.report import FAILED, GRADER_ERROR, HARNESS_ERROR, NOT_GRADED, PASSED, Report
from conformance.grading.rubric import NO_RUBRIC, default_text, read_rubric, regraded
from conformance.submissions.location import locate
from conformance.submissions.packages import installed
from pytest_ddp.errors import UsageError

COMMAND = "pytest-ddp-grade"
INTERRUPTED = 130
WORLD_SIZE = 4
MAX_EXAMPLES = 10
_SEED_BITS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: all that is submitted passed; 1: a component failed; 2: misuse, or a submission that cannot be graded; 3: an
    error in the grader; 130: interrupted. With `--out`, 0 means that the results are written, whatever they are.
    """
    if arguments is None:
        become_forkable()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given if given and given[0] in _COMMANDS else ["grade", *given])
    try:
        if vars(options).get("packages"):
            sys.path.append(str(installed(options.packages)))  # the ranks have the same path
        return _COMMANDS[options.command](options)
    except UsageError as error:
        sys.stderr.write(f"conformance: {error}\n")
        return NOT_GRADED
    except KeyboardInterrupt:
        sys.stderr.write("conformance: interrupted\n")
        return INTERRUPTED
    except Exception:  # noqa: BLE001  whatever happens, the exit code tells whose fault it is
        sys.stderr.write(f"conformance: {GRADER_ERROR}\n{traceback.format_exc()}")
        return HARNESS_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND)
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="run a submission again on the scenario that a check failed on")
    _add_with(replay)
    replay.add_argument("case", type=Path, metavar="FILE", help="the .json file beside the script of the failure")
    repeat = f"`{COMMAND} replay FILE` repeats a failure."
    grade = commands.add_parser("grade", prog=COMMAND, description="Grade data-parallel code.", epilog=repeat)
    _add_grade_options(grade)
    regrade = commands.add_parser("regrade", help="give an earlier grade the points of a rubric; no check runs again")
    regrade.add_argument("report", type=Path, metavar="REPORT", help="what `--json` wrote")
    _add_report_options(regrade, rubric_needed=True)
    rubric = commands.add_parser("rubric", help="print the default rubric, or check one")
    rubric.add_argument("--check", type=Path, metavar="FILE", help="say what is wrong with a rubric")
    return parser


def _add_report_options(command: argparse.ArgumentParser, *, rubric_needed: bool = False) -> None:
    for form in FORMATS:
        command.add_argument(form.option, dest=form.option, type=Path, metavar="FILE", help=form.help)
    about = "the points, in TOML; `pytest-ddp-grade rubric` prints the default"
    command.add_argument("--rubric", type=Path, metavar="FILE", required=rubric_needed, help=about)


def _add_grade_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("paths", nargs="+", metavar="PATH", help="folder, .py file or module with adapter functions")
    add("--world-size", type=int, default=WORLD_SIZE, metavar="N", help="ranks in the largest world (%(default)s)")
    add("--components", metavar="A,B", help="names of the components to grade (all)")
    _add_report_options(command)
    add("--seed", type=int, metavar="S", help="the seed of an earlier grade, to repeat it (random)")
    add("--max-examples", type=int, default=MAX_EXAMPLES, metavar="N", help="scenarios per check (%(default)s)")
    add("--from-scratch", action="store_true", help="fail components that use torch's own implementation")
    add("--core", action="store_true", help="leave out extended checks, which give no points")
    _add_with(command)
    about = "a package that submissions wrap: what it refuses, they refuse; repeatable"
    add("--library", action="append", default=[], metavar="PACKAGE", help=about)
    about = "the longest that a submission may take to import (%(default)s)"
    add("--import-seconds", type=int, default=IMPORT_SECONDS, metavar="N", help=about)
    add(
        "--out", type=Path, metavar="DIR", help="grade all submissions in the folder PATH; write results to this folder"
    )
    add("--jobs", type=int, default=1, metavar="N", help="with --out: submissions at the same time (%(default)s)")
    add("--limit", type=int, default=1800, metavar="N", help="with --out: seconds for one submission (%(default)s)")
    add("--roster", type=Path, metavar="FILE", help="with --out: a CSV file with the columns name and path")
    add("--repro-dir", type=Path, default="repro", metavar="DIR", help="folder for scripts of failures (%(default)s)")


def _add_with(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--with",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="install a package that submissions need, in a cached folder of its own; repeatable",
    )


def _grade(options: argparse.Namespace) -> int:
    """Check what can be checked without torch, then grade one submission after another."""
    if options.out:
        return _grade_course(options)
    reports = Reports()
    files = _files(options, reports)
    misplaced = [wrong for path in options.paths if (wrong := _misplaced(path))]
    if len(misplaced) == len(options.paths) and not files:
        raise UsageError("\n".join(misplaced))
    examples = _positive("--max-examples", options.max_examples)
    _positive("--import-seconds", options.import_seconds)
    for file in files:
        file.write()  # without any submission yet: a path that cannot be written is told at once
    with progress() as shown, fork_servers() as launcher:
        from conformance.grading.grade import Grading, grade  # noqa: PLC0415  imports torch, while the servers do too
        from conformance.judging.draws import nothing_kept  # noqa: PLC0415  as above

        seed = secrets.randbits(_SEED_BITS) if options.seed is None else options.seed
        components = _components(options.components)
        world_size, folder = _world_size(options.world_size), options.repro_dir
        grading = Grading(
            seed,
            world_size,
            components,
            examples,
            folder,
            options.from_scratch,
            options.core,
            tuple(options.library),
            options.import_seconds,
            read_rubric(options.rubric) if options.rubric else NO_RUBRIC,
        )
        printed = InActions(ConsoleReport(reports), reports) if in_actions() else ConsoleReport(reports)
        with nothing_kept():
            _report(grade(options.paths, grading, launcher), [reports, shown, printed, *files], files)
    return max(report.exit_code for report in reports.reports)


def _grade_course(options: argparse.Namespace) -> int:
    """Grade all submissions in a folder, each in a process tree of its own."""
    if len(options.paths) != 1:
        raise UsageError("--out: give one folder, which holds the submissions")
    if given := [form.option for form in FORMATS if vars(options)[form.option]]:
        raise UsageError(f"{given[0]} is for one grade: --out writes report.json and report.html for each submission")
    if options.seed is None:
        raise UsageError("--out: give --seed, so that all submissions, and a later run, get the same scenarios")
    from conformance.batch.course import Course, grade_course  # noqa: PLC0415  imports torch with the components

    components = _components(options.components)
    passed_on = ["--world-size", str(_world_size(options.world_size)), "--max-examples"]
    passed_on += [str(_positive("--max-examples", options.max_examples))]
    passed_on += ["--import-seconds", str(_positive("--import-seconds", options.import_seconds))]
    passed_on += ["--core"] * options.core + ["--from-scratch"] * options.from_scratch
    for option, values in (("--library", options.library), ("--with", options.packages)):
        passed_on += [word for value in values for word in (option, value)]
    course = Course(
        entries(Path(options.paths[0]), options.roster),
        options.out,
        components,
        options.seed,
        tuple(passed_on),
        _positive("--limit", options.limit),
        read_rubric(options.rubric) if options.rubric else NO_RUBRIC,
    )
    with course_progress(len(course.entries), course.rubric) as ended:
        grade_course(course, _positive("--jobs", options.jobs), ended)
    sys.stdout.write(f"{options.out / 'gradebook.csv'}\n{options.out / 'class.html'}\n")
    return PASSED


def _files(options: argparse.Namespace, reports: Reports) -> list[ReportFile]:
    return [ReportFile(path, form, reports) for form in FORMATS if (path := vars(options)[form.option])]


def _regrade(options: argparse.Namespace) -> int:
    """Print and write the reports of an earlier grade with other points."""
    rubric = read_rubric(options.rubric)
    try:
        plain = json.loads(options.report.read_text(encoding="utf-8"))
        reports = Reports([regraded(Report.from_json(one), rubric) for one in plain["submissions"]])
    except OSError as error:
        raise UsageError(f"{options.report}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{options.report} is not a report that `--json` wrote: {error!r}") from None
    for file in _files(options, reports):
        file.write()
    for report in reports.reports:
        if report.not_graded_because:
            sys.stderr.write(f"conformance: {report.not_graded_because}\n")
        else:
            show(report, Console())
    return max((report.exit_code for report in reports.reports), default=NOT_GRADED)


def _rubric(options: argparse.Namespace) -> int:
    if options.check:
        read_rubric(options.check)
        sys.stdout.write(f"{options.check} is a rubric\n")
    else:
        sys.stdout.write(default_text())
    return PASSED


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


def _replay(options: argparse.Namespace) -> int:
    """Hold a submission again to one check, on one scenario or case, and print what is wrong."""
    with fork_servers() as launcher, ranks_from(launcher) as ranks:
        from conformance.reproduction.replay import Replay  # noqa: PLC0415  imports torch, while the servers do too

        wanted = Replay.read(options.case)
        result = wanted.run(ranks)
    said = [f"{wanted.component}: {wanted.check.id}  {result.status}", result.diagnosis, result.message]
    sys.stdout.write("".join(f"{paragraph}\n" for paragraph in said if paragraph))
    return PASSED if result.status == "passed" else FAILED


def _components(names: str | None) -> tuple[str, ...]:
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    if names is None:
        return tuple(COMPONENTS)
    wanted = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in wanted if name not in COMPONENTS]
    if unknown or not wanted:
        wrong = f"--components: there is no {' and no '.join(unknown)}" if unknown else "--components is empty"
        raise UsageError(f"{wrong}; choose from {', '.join(COMPONENTS)}")
    return wanted


def _world_size(wanted: int) -> int:
    from pytest_ddp.planning.plan import Machine  # noqa: PLC0415  imports torch

    most = Machine.detect().max_world_size("cpu")
    if wanted == 1:
        raise UsageError("--world-size 1: a single rank has nothing to synchronise; give 2 or more")
    if not 1 < wanted <= most:
        raise UsageError(f"--world-size {wanted}: this machine runs 2 to {most} ranks")
    return wanted


def _positive(option: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{option} {value}: give 1 or more")
    return value


_COMMANDS = {"grade": _grade, "replay": _replay, "regrade": _regrade, "rubric": _rubric}
