"""One pytest report for all failing examples that Hypothesis found in a test."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.given.failures import ExampleFailed
from pytest_ddp.pytest_internals import (
    ExceptionChainRepr,
    ExceptionRepr,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)
from pytest_ddp.reporting.merge import PhaseResult, merge, text_entry


@dataclass(frozen=True)
class Bugs:
    """The bugs that Hypothesis found: a failing example for each, and its notes on all of them."""

    examples: Sequence[ExampleFailed]
    notes: Sequence[str] = ()


def report_bugs(report: pytest.TestReport, bugs: Bugs, config: pytest.Config) -> None:
    """Turn the controller's `report` into a report of every bug, each with its example."""
    reports = [_report_of(bug, report, config) for bug in bugs.examples]
    shown = [one for one in reports if one.failed] or reports[:1]  # the test is xfailed if each bug is
    report.outcome = shown[0].outcome
    if hasattr(shown[0], "wasxfail"):
        report.wasxfail = shown[0].wasxfail
    report.longrepr = shown[0].longrepr if len(shown) == 1 else _chained(shown, bugs.notes)


def _report_of(bug: ExampleFailed, report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    one = copy(report)
    merge(one, PhaseResult.of(bug.outcomes, bug.world), config)
    _add_notes(one, [line for note in getattr(bug, "__notes__", []) for line in note.splitlines()])
    return one


def _add_notes(report: pytest.TestReport, lines: list[str]) -> None:
    """Add lines where pytest shows the notes of an exception."""
    if isinstance(report.longrepr, ExceptionRepr):
        entry: Any = report.longrepr.reprtraceback.reprentries[-1]
        native = entry.style == "native"
        entry.lines = [*entry.lines, *(f"{line}\n" if native else f"E       {line}" for line in lines)]
    elif report.failed:
        report.longrepr = "\n".join([str(report.longrepr), *lines])


def _chained(reports: Sequence[pytest.TestReport], notes: Sequence[str]) -> ExceptionChainRepr:
    """Return the exceptions of all reports as one chain, with the notes on top."""
    parts = [_as_exception(report) for report in reports]
    titles = [f"--- failure {number} of {len(parts)}: ---" for number in range(2, len(parts) + 1)]
    chain: list[tuple[ReprTraceback, ReprFileLocation | None, str | None]] = []
    for part, next_title in zip(parts, [*titles, None], strict=True):
        causes = part.chain[:-1] if isinstance(part, ExceptionChainRepr) else []
        chain += [*causes, (part.reprtraceback, part.reprcrash, next_title)]
    chained = ExceptionChainRepr(chain)
    first = chain[0][0]
    first.reprentries = [text_entry("\n".join(notes)), *first.reprentries]
    for part in parts:
        for section in part.sections:
            chained.addsection(*section)
    if chained.reprcrash is not None:
        chained.reprcrash = copy(chained.reprcrash)
        chained.reprcrash.message = f"{len(parts)} distinct failures, the last: {chained.reprcrash.message}"
    return chained


def _as_exception(report: pytest.TestReport) -> ExceptionRepr:
    if isinstance(report.longrepr, ExceptionRepr):
        return report.longrepr
    text = ReprTraceback([text_entry(report.longreprtext)], None, "long")
    return ReprExceptionInfo(reprcrash=None, reprtraceback=text)
