"""What the reports of all ranks say together: ranks that fail as expected, and ranks that disagree.

A test is one test on all its ranks. Under the marker xfail it has failed as expected when any rank has, unless some
rank failed in a way that was not expected. `pytest.skip` and `pytest.xfail` are for all ranks or for none.
"""

from collections.abc import Mapping, Sequence

import pytest

from pytest_ddp.outcomes.hang_diagnosis import peer_left
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped, Stopped
from pytest_ddp.planning.world import rank_list

XPASS_STRICT = "[XPASS(strict)]"  # how pytest begins its report of a test that passed and should not have
Reports = Mapping[int, pytest.TestReport]


def as_reported(outcomes: Sequence[Outcome], reports: Reports) -> list[Outcome]:
    """Return the outcomes, those of ranks that skipped or failed as expected as `Skipped`."""
    return [_as_reported(outcome, reports.get(outcome.rank)) for outcome in outcomes]


def _as_reported(outcome: Outcome, report: pytest.TestReport | None) -> Outcome:
    if report is None or not report.skipped or not isinstance(outcome, Returned | Raised | Skipped):
        return outcome
    return Skipped(
        rank=outcome.rank,
        seconds=outcome.seconds,
        output=outcome.output,
        collectives=outcome.collectives,
        reason=_told(report) if _xfailed(report) else _reason(report),
        body=outcome.body,
    )


def expected_failure(outcomes: Sequence[Outcome], reports: Reports) -> tuple[int, str] | None:
    """Return a rank that failed as expected, and the reason; None if none did or one failed in another way."""
    expected = [rank for rank, report in reports.items() if _xfailed(report)]
    if not expected or any(_unexpected(outcome, reports.get(outcome.rank)) for outcome in outcomes):
        return None
    reason = reports[expected[0]].wasxfail
    others = "" if len(expected) == len(outcomes) else f"({rank_list(expected)} of {len(outcomes)})"
    return expected[0], " ".join(filter(None, (reason, others)))


def passed_strictly(outcomes: Sequence[Outcome], reports: Reports) -> bool:
    """Whether every rank passed where the marker xfail, being strict, wants a failure."""
    return len(reports) == len(outcomes) and all(map(_passed_strictly, reports.values()))


def disagreement(reports: Reports) -> str | None:
    """Say which rank skipped or xfailed while another did neither; None if they agree."""
    said = {rank: _word(report) for rank, report in reports.items()}
    for word, call in (("skipped", "skip"), ("xfailed", "xfail")):
        if word in said.values() and set(said.values()) != {word}:
            each = ", ".join(f"rank {rank} {_told(report)}" for rank, report in reports.items())
            return f"the ranks disagree: {each}; {call} on all ranks or on none"
    return None


def _xfailed(report: pytest.TestReport) -> bool:
    return report.skipped and hasattr(report, "wasxfail")


def _passed_strictly(report: pytest.TestReport) -> bool:
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(XPASS_STRICT)


def _unexpected(outcome: Outcome, report: pytest.TestReport | None) -> bool:
    """Whether a rank failed by itself, neither as the marker expects nor because another one had."""
    if isinstance(outcome, Returned | Skipped | Stopped) or peer_left(outcome):
        return False
    return not (isinstance(outcome, Raised) and report is not None and (_xfailed(report) or _passed_strictly(report)))


def _word(report: pytest.TestReport) -> str:
    """Return what a rank did; under the marker xfail, one that passed was also expected to fail."""
    return "xfailed" if hasattr(report, "wasxfail") or report.failed else report.outcome


def _told(report: pytest.TestReport) -> str:
    if _xfailed(report):
        return f"xfailed ({report.wasxfail})" if report.wasxfail else "xfailed"
    return f"skipped ({_reason(report)})" if report.skipped else report.outcome


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
