"""What the reports of several ranks say together."""

import pytest

from pytest_ddp.outcomes.outcome import Died, Raised, Returned, Skipped, Stopped
from pytest_ddp.reporting.skip_xfail import all_passed_strictly, apply_reports, disagreement, expected_failure

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def report(outcome, longrepr=None, wasxfail: str | None = None) -> pytest.TestReport:
    made = pytest.TestReport("test_it", ("test.py", 1, "test_it"), {}, outcome, longrepr, "call")
    if wasxfail is not None:
        made.wasxfail = wasxfail
    return made


def raised(rank: int, message: str = "") -> Raised:
    return Raised(rank=rank, kind="ValueError", message=message, traceback="")


XFAILED = report(SKIPPED, "traceback", "known")
XPASSED = report(PASSED, wasxfail="known")
STRICT = report(FAILED, "[XPASS(strict)] known")
SKIP = report(SKIPPED, ("test.py", 1, "Skipped: not here"))
PEER_LEFT = "Connection closed by peer"


@pytest.mark.parametrize(
    ("outcomes", "reports", "expected"),
    [
        ([raised(0), raised(1)], {0: XFAILED, 1: XFAILED}, (0, "known")),
        ([Returned(rank=0), raised(1)], {0: XPASSED, 1: XFAILED}, (1, "known (rank 1 of 2)")),
        ([raised(0), raised(1)], {0: STRICT, 1: XFAILED}, (1, "known (rank 1 of 2)")),
        ([Stopped(rank=0), raised(1)], {1: XFAILED}, (1, "known (rank 1 of 2)")),
        ([raised(0, PEER_LEFT), raised(1)], {0: report(FAILED, "x"), 1: XFAILED}, (1, "known (rank 1 of 2)")),
        ([raised(0), raised(1)], {0: report(FAILED, "x"), 1: XFAILED}, None),
        ([Died(rank=0), raised(1)], {1: XFAILED}, None),
        ([Returned(rank=0)], {0: report(PASSED)}, None),
    ],
)
def test_an_expected_failure_of_any_rank_is_one_unless_another_failed_by_itself(outcomes, reports, expected):
    assert expected_failure(outcomes, reports) == expected


def test_a_strict_pass_is_one_of_all_ranks():
    assert all_passed_strictly([raised(0), raised(1)], {0: STRICT, 1: STRICT})
    assert not all_passed_strictly([raised(0), Died(rank=1)], {0: STRICT})
    assert not all_passed_strictly([raised(0), raised(1)], {0: STRICT, 1: report(FAILED, "x")})


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ({0: report(PASSED), 1: report(PASSED)}, None),
        ({0: SKIP, 1: SKIP}, None),
        ({0: XPASSED, 1: XFAILED}, None),
        ({0: STRICT, 1: XFAILED}, None),
        ({0: report(PASSED), 1: SKIP}, "rank 0 passed, rank 1 skipped (not here); skip on all ranks or on none"),
        ({0: XFAILED, 1: report(PASSED)}, "rank 0 xfailed (known), rank 1 passed; xfail on all ranks or on none"),
        ({0: XFAILED, 1: SKIP}, "rank 0 xfailed (known), rank 1 skipped (not here); skip on all ranks or on none"),
    ],
)
def test_disagreement_is_said_with_the_ranks(reports, said):
    assert disagreement(reports) == (said and f"the ranks disagree: {said}")


def test_ranks_that_skipped_or_failed_as_expected_are_no_cause():
    outcomes = apply_reports([Returned(rank=0), raised(1), raised(2)], {0: SKIP, 1: XFAILED, 2: report(FAILED, "x")})
    assert [outcome.reason for outcome in outcomes if isinstance(outcome, Skipped)] == ["not here", "xfailed (known)"]
    assert outcomes[2] == raised(2)
