"""`pytest-ddp-grade regrade`: gives an earlier grade, of one submission or of a course, the points of a rubric."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from conformance.batch.results import Results
from conformance.commands.course import naming_faults_of, show_course
from conformance.commands.options import add_report_options, report_files
from conformance.grading.events import Reports
from conformance.grading.formats import FORMATS
from conformance.grading.formats.console import show
from conformance.grading.report import NOT_GRADED, PASSED, Report
from conformance.grading.rubric import Rubric, read_rubric, regraded
from pytest_ddp.errors import UsageError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    regrade = commands.add_parser("regrade", help="give an earlier grade the points of a rubric; no check runs again")
    about = "what `--json` wrote, or the folder of `--out`, whose gradebook and reports are written anew"
    regrade.add_argument("report", type=Path, metavar="REPORT", help=about)
    add_report_options(regrade, rubric_needed=True)
    regrade.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Print and write the reports of an earlier grade with other points."""
    rubric = read_rubric(options.rubric)
    if options.report.is_dir():
        if given := [form.option for form in FORMATS if vars(options)[form.option]]:
            raise UsageError(
                f"{given[0]} is for one report: a course's folder has report.json and report.html for each"
            )
        results, gone = Results.found(options.report).without_those_who_are_gone()
        if gone:
            sys.stderr.write(f"conformance: left out, since their folders are gone: {', '.join(gone)}\n")
        with naming_faults_of(options.report), results.alone():
            results.hold_known()
            results.keep_rubric(options.rubric)
            show_course(results.write(rubric), options.report)
        return PASSED
    reports = _regraded(options.report, rubric)
    _say_what_differs(reports, rubric)
    for file in report_files(options, reports):
        file.write()
    for report in reports.reports:
        if report.not_graded_because:
            sys.stderr.write(f"conformance: {report.not_graded_because}\n")
        else:
            show(report, Console())
    return max((report.exit_code for report in reports.reports), default=NOT_GRADED)


def _say_what_differs(reports: Reports, rubric: Rubric) -> None:
    """Say which components only the rubric or only the grade has."""
    if not rubric.aspects:
        return
    graded = {component.name for report in reports.reports for component in report.components}
    if others := sorted(graded - {*rubric.aspects}):
        sys.stderr.write(f"conformance: the rubric does not name {', '.join(others)}: their points stay\n")
    if lacking := sorted({*rubric.aspects} - graded):
        sys.stderr.write(f"conformance: the report lacks {', '.join(lacking)}, which the rubric names\n")


def _regraded(path: Path, rubric: Rubric) -> Reports:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        found = Reports([regraded(Report.from_json(one), rubric) for one in plain["submissions"]])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not a report that `--json` wrote") from None
    if not found.reports:
        raise UsageError(f"{path} holds no submission: its grade ended before it began")
    return found
