"""Skips and expected failures on several ranks, as the result of one test.

Under the marker xfail, a test has failed as expected if at least one rank has, and no rank failed in another way.
`pytest.skip` and `pytest.xfail` must be called on all ranks or on none.
"""

from collections.abc import Mapping, Sequence

import pytest

from pytest_ddp.outcomes.hang_diagnosis import peer_left
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped, Stopped
from pytest_ddp.planning.world import rank_list

XPASS_STRICT = "[XPASS(strict)]"  # how pytest begins the report of a test that passed under a strict xfail
Reports = Mapping[int, pytest.TestReport]


def apply_reports(outcomes: Sequence[Outcome], reports: Reports) -> list[Outcome]:
    """Return the outcomes, with `Skipped` for each rank that skipped or failed as expected by its report."""
    return [_apply_report(outcome, reports.get(outcome.rank)) for outcome in outcomes]


def _apply_report(outcome: Outcome, report: pytest.TestReport | None) -> Outcome:
    if report is None or not report.skipped or not isinstance(outcome, Returned | Raised | Skipped):
        return outcome
    return Skipped(
        rank=outcome.rank,
        seconds=outcome.seconds,
        output=outcome.output,
        collectives=outcome.collectives,
        reason=_describe(report) if _xfailed(report) else skip_reason(report),
        body=outcome.body,
    )


def expected_failure(outcomes: Sequence[Outcome], reports: Reports) -> tuple[int, str] | None:
    """Return a rank that failed as expected, and the reason.

    It is None if no rank did, or if a rank failed in a way that the marker does not expect.
    """
    expected = [rank for rank, report in reports.items() if _xfailed(report)]
    if not expected or any(_failed_unexpectedly(outcome, reports.get(outcome.rank)) for outcome in outcomes):
        return None
    reason = reports[expected[0]].wasxfail
    part = "" if len(expected) == len(outcomes) else f"({rank_list(expected)} of {len(outcomes)})"
    return expected[0], " ".join(filter(None, (reason, part)))


def all_passed_strictly(outcomes: Sequence[Outcome], reports: Reports) -> bool:
    """Whether every rank passed under a strict xfail, which requires a failure."""
    return len(reports) == len(outcomes) and all(map(_passed_strictly, reports.values()))


def disagreement(reports: Reports) -> str | None:
    """Return a sentence if some ranks skipped or xfailed and others did not; None if they agree."""
    results = {_result(report) for report in reports.values()}
    for result, function in (("skipped", "skip"), ("xfailed", "xfail")):
        if result in results and results != {result}:
            each = ", ".join(f"rank {rank} {_describe(report)}" for rank, report in reports.items())
            return f"the ranks disagree: {each}; {function} on all ranks or on none"
    return None


def _xfailed(report: pytest.TestReport) -> bool:
    return report.skipped and hasattr(report, "wasxfail")


def _passed_strictly(report: pytest.TestReport) -> bool:
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(XPASS_STRICT)


def _failed_unexpectedly(outcome: Outcome, report: pytest.TestReport | None) -> bool:
    """Whether a rank failed by itself, and not as the marker expects."""
    if isinstance(outcome, Returned | Skipped | Stopped) or peer_left(outcome):
        return False
    return not (isinstance(outcome, Raised) and report is not None and (_xfailed(report) or _passed_strictly(report)))


def _result(report: pytest.TestReport) -> str:
    """Return the result of a rank; a rank that passed under the marker xfail counts as xfailed."""
    return "xfailed" if hasattr(report, "wasxfail") or report.failed else report.outcome


def _describe(report: pytest.TestReport) -> str:
    if _xfailed(report):
        return f"xfailed ({report.wasxfail})" if report.wasxfail else "xfailed"
    return f"skipped ({skip_reason(report)})" if report.skipped else report.outcome


def skip_reason(report: pytest.TestReport) -> str:
    """Return the reason of a skipped test."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
