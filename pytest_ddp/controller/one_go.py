"""Takes apart what ranks answered that ran setup and call in one go."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from pytest_ddp.controller.exits import leave_if_asked
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped
from pytest_ddp.reporting.merge import answer_of


@dataclass(frozen=True)
class OneGo:
    """The outcomes of one run, as those of two phases.

    Attributes:
        setup: what became of setup. Ranks that never answered were past it: it is joined with the call only where
            nothing can keep it up.
        call: what became of the call; empty if setup did not pass on every rank.
        seconds: how long the call took on the slowest rank.
        guard: what an outer guard such as pytest-timeout raised while the ranks were waited for.
    """

    setup: Sequence[Outcome]
    call: Sequence[Outcome] = ()
    seconds: float = 0.0
    guard: BaseException | None = None

    @classmethod
    def of(cls, wait: Callable[[], Sequence[Outcome]]) -> "OneGo":
        """Wait for the outcomes and take them apart."""
        started = time.perf_counter()
        try:
            outcomes = wait()
        except pytest.fail.Exception as guard:
            return cls((), seconds=time.perf_counter() - started, guard=guard)
        leave_if_asked(outcomes)
        setup = [_setup_of(outcome) for outcome in outcomes]
        if any(_ended_in_setup(outcome) for outcome in outcomes):
            return cls(setup)
        passed = [done if isinstance(done, Returned) else Returned(rank=done.rank) for done in setup]
        return cls(passed, outcomes, max(map(_seconds_of_call, outcomes)))

    def correct(self, report: pytest.TestReport) -> None:
        """Let the reports of the phases tell their own durations; pytest saw both in setup."""
        if (
            report.when == "setup"
        ):  # ranks that had begun early were in the call already when pytest came to wait for it
            report.duration = max(0.0, report.duration - self.seconds)
        elif report.when == "call":
            report.duration += self.seconds


def _ended_in_setup(outcome: Outcome) -> bool:
    return isinstance(outcome, Returned | Raised | Skipped) and answer_of(outcome).setup is None


def _setup_of(outcome: Outcome) -> Outcome:
    answer = answer_of(outcome).setup
    return outcome if answer is None else Returned(rank=outcome.rank, body=answer.encode())


def _seconds_of_call(outcome: Outcome) -> float:
    answer = answer_of(outcome)
    if answer.passed is not None:
        return answer.passed
    return outcome.seconds if answer.report is None else float(answer.report["duration"])
