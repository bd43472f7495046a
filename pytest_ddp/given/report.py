"""Makes one pytest report of the failing examples that Hypothesis found."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

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

_Link: TypeAlias = tuple[ReprTraceback, ReprFileLocation | None, str | None]


@dataclass(frozen=True)
class Bugs:
    """What Hypothesis found: a failing example for each bug, and what it remarks on all of them."""

    examples: Sequence[ExampleFailed]
    remarks: Sequence[str] = ()


def report_bugs(report: pytest.TestReport, bugs: Bugs, config: pytest.Config) -> None:
    """Turn the controller's `report` into that of every bug, each with its example."""
    found = [_report_of(bug, report, config) for bug in bugs.examples]
    shown = [one for one in found if one.failed] or found[:1]  # what is expected to fail counts only if all is
    report.outcome = shown[0].outcome
    if hasattr(shown[0], "wasxfail"):
        report.wasxfail = shown[0].wasxfail
    report.longrepr = shown[0].longrepr if len(shown) == 1 else _chain(shown, bugs.remarks)


def _report_of(bug: ExampleFailed, report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    one = copy(report)
    merge(one, PhaseResult.of(bug.outcomes, bug.world), config)
    _add(one, [line for note in getattr(bug, "__notes__", []) for line in note.splitlines()])
    return one


def _add(report: pytest.TestReport, lines: list[str]) -> None:
    """Show lines where pytest shows the notes of an exception."""
    if isinstance(report.longrepr, ExceptionRepr):
        entry: Any = report.longrepr.reprtraceback.reprentries[-1]
        native = entry.style == "native"
        entry.lines = [*entry.lines, *(f"{line}\n" if native else f"E       {line}" for line in lines)]
    elif report.failed:
        report.longrepr = "\n".join([str(report.longrepr), *lines])


def _chain(reports: Sequence[pytest.TestReport], remarks: Sequence[str]) -> ExceptionChainRepr:
    parts = [_as_exception(report) for report in reports]
    links = [f"--- failure {number} of {len(parts)}: ---" for number in range(2, len(parts) + 1)]
    chain: list[_Link] = []
    for part, link in zip(parts, [*links, None], strict=True):
        causes = part.chain[:-1] if isinstance(part, ExceptionChainRepr) else []
        chain += [*causes, (part.reprtraceback, part.reprcrash, link)]
    together = ExceptionChainRepr(chain)
    first = chain[0][0]
    first.reprentries = [text_entry("\n".join(remarks)), *first.reprentries]
    for part in parts:
        for section in part.sections:
            together.addsection(*section)
    if together.reprcrash is not None:
        together.reprcrash = copy(together.reprcrash)
        together.reprcrash.message = f"{len(parts)} distinct failures, the last: {together.reprcrash.message}"
    return together


def _as_exception(report: pytest.TestReport) -> ExceptionRepr:
    if isinstance(report.longrepr, ExceptionRepr):
        return report.longrepr
    text = ReprTraceback([text_entry(report.longreprtext)], None, "long")
    return ReprExceptionInfo(reprcrash=None, reprtraceback=text)
