"""Makes one pytest report of the reports of all ranks: root cause first, the others folded under it."""

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr, ReprEntry, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_ddp.failure import details, failures, headline, summary
from pytest_ddp.outcome import Outcome, Raised, Returned, Skipped
from pytest_ddp.phase import decode_report
from pytest_ddp.world import World


def merge(report: pytest.TestReport, outcomes: Sequence[Outcome], world: World, config: pytest.Config) -> None:
    """Turn the controller's `report` of a phase into that of all ranks."""
    reports = {outcome.rank: found for outcome in outcomes if (found := _rank_report(outcome, config))}
    for found in reports.values():
        report.user_properties += [pair for pair in found.user_properties if pair not in report.user_properties]
    failed = failures(outcomes)
    if failed:
        _fail_or_xfail(report, outcomes, reports, world)
    elif reports:
        _agree(report, reports)


def output_sections(outcomes: Sequence[Outcome], when: str, config: pytest.Config) -> list[tuple[str, str]]:
    """Return what the ranks printed and logged in this phase, as sections of a report."""
    found = [(f"Captured output {when} (rank {o.rank})", o.output) for o in outcomes if o.output.strip()]
    for outcome in outcomes:
        rank_report = _rank_report(outcome, config)
        for title, text in rank_report.sections if rank_report else []:
            if title.endswith(when):
                found.append((f"{title} (rank {outcome.rank})", text))
    return found


def _rank_report(outcome: Outcome, config: pytest.Config) -> pytest.TestReport | None:
    body = outcome.body if isinstance(outcome, Returned | Raised | Skipped) else b""
    data = decode_report(body)
    if data is None:
        return None
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    longrepr: Any = report.longrepr
    if isinstance(longrepr, list):  # a skip's (path, line, reason); JSON knows no tuples
        report.longrepr = (longrepr[0], longrepr[1], longrepr[2])
    return report


def _fail_or_xfail(
    report: pytest.TestReport, outcomes: Sequence[Outcome], reports: dict[int, pytest.TestReport], world: World
) -> None:
    root = failures(outcomes)[0]
    found = reports.get(root.rank)
    if found is not None and hasattr(found, "wasxfail"):
        report.outcome, report.longrepr, report.wasxfail = found.outcome, found.longrepr, found.wasxfail
        return
    report.outcome = "failed"
    report.longrepr = _longrepr(outcomes, found, world, report.location)


def _longrepr(
    outcomes: Sequence[Outcome], found: pytest.TestReport | None, world: World, location: tuple[str, int | None, str]
) -> ExceptionRepr | str:
    head, root = headline(outcomes, world), failures(outcomes)[0]
    if found is None:
        path, line, _ = location
        crash = ReprFileLocation(path, (line or 0) + 1, summary(outcomes))
        text = "\n".join([head, *details(outcomes)])
        return ReprExceptionInfo(reprcrash=crash, reprtraceback=ReprTraceback([text_entry(text)], None, "long"))
    if not isinstance(found.longrepr, ExceptionRepr):
        return "\n".join([head, str(found.longrepr), *details(outcomes)[1:]])
    traceback = _first_traceback(found.longrepr)
    traceback.reprentries = [text_entry(head), *traceback.reprentries]
    if found.longrepr.reprcrash is not None:
        found.longrepr.reprcrash.message = f"rank {root.rank}: {found.longrepr.reprcrash.message}"
    for text in details(outcomes)[1:]:
        title, _, body = text.partition("\n")
        found.longrepr.addsection(title.strip("- "), body)
    return found.longrepr


def _first_traceback(longrepr: ExceptionRepr) -> ReprTraceback:
    chain = getattr(longrepr, "chain", None)
    traceback: ReprTraceback = chain[0][0] if chain else longrepr.reprtraceback
    return traceback


def text_entry(text: str) -> ReprEntry:
    """Return a part of a traceback that is nothing but text."""
    return ReprEntry(text.splitlines(), None, None, None, "long")


def _agree(report: pytest.TestReport, reports: dict[int, pytest.TestReport]) -> None:
    """Every rank passed or skipped: take over what they agree on; a disagreement is a failure."""
    kinds = {found.outcome for found in reports.values()}
    first = next(iter(reports.values()))
    if len(kinds) == 1:
        report.outcome, report.longrepr = first.outcome, first.longrepr
        if hasattr(first, "wasxfail"):
            report.wasxfail = first.wasxfail
        return
    said = ", ".join(f"rank {rank} {_passed_or_skipped(found)}" for rank, found in reports.items())
    report.outcome = "failed"
    report.longrepr = f"the ranks disagree: {said}; skip on all ranks or on none"


def _passed_or_skipped(found: pytest.TestReport) -> str:
    if not found.skipped:
        return found.outcome
    reason = found.longrepr[2] if isinstance(found.longrepr, tuple) else found.longrepr
    return f"skipped ({reason})"
