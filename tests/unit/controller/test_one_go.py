"""What ranks answered that ran setup and call in one go, taken apart."""

from types import SimpleNamespace

import pytest

from pytest_ddp.controller.one_go import OneGo
from pytest_ddp.outcomes.outcome import Died, Outcome, Raised, Returned, Stopped
from pytest_ddp.protocol.phases import PhaseAnswer
from pytest_ddp.reporting.merge import answer_of

SETUP = PhaseAnswer(passed=0.25)


def called(rank: int, seconds: float) -> Returned:
    """Return the outcome of a rank that has passed both phases; rank 1 has recorded a property in the call."""
    report = {"outcome": "passed", "user_properties": [("loss", 1)], "duration": seconds} if rank == 1 else None
    answer = PhaseAnswer(report, None if report else seconds, setup=SETUP.encode().decode())
    return Returned(rank=rank, seconds=seconds + 0.5, body=answer.encode())


def test_setup_and_call_have_their_own_reports_and_durations():
    outcomes: list[Outcome] = [called(0, 2.0), called(1, 3.0)]
    one_go = OneGo.of(lambda: outcomes)
    assert [answer_of(outcome) for outcome in one_go.setup] == [SETUP, SETUP]
    assert one_go.call == outcomes
    setup, call, teardown = (SimpleNamespace(when=when, duration=4.0) for when in ("setup", "call", "teardown"))
    for report in (setup, call, teardown):
        one_go.correct(report)
    assert (setup.duration, call.duration, teardown.duration) == (1.0, 7.0, 4.0)
    brief = SimpleNamespace(when="setup", duration=0.5)
    one_go.correct(brief)
    assert brief.duration == 0.0


def test_a_rank_that_gave_no_answer_was_in_the_call():
    outcomes = [called(0, 1.0), Died(rank=1, seconds=5.0, exit_code=3)]
    one_go = OneGo.of(lambda: outcomes)
    assert all(isinstance(outcome, Returned) for outcome in one_go.setup)
    assert (one_go.call, one_go.seconds) == (outcomes, 5.0)


def test_a_failure_in_setup_leaves_no_call():
    failed = Raised(rank=1, kind="OSError", message="", traceback="", body=SETUP.encode())
    one_go = OneGo.of(lambda: [called(0, 1.0), failed, Stopped(rank=2)])
    assert one_go.call == ()
    assert [type(outcome) for outcome in one_go.setup] == [Returned, Raised, Stopped]


def test_a_guard_is_kept_for_the_call():
    def wait():
        pytest.fail("too long")

    one_go = OneGo.of(wait)
    assert "too long" in str(one_go.guard)
    assert (one_go.setup, one_go.call) == ((), ())
