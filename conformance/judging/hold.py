"""Looks for a scenario on which a component fails one check; keeps what failed last, which is the smallest."""

import math
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from conformance.checks.check import Check, NotOffered, Refused, Violation
from conformance.components.component import Component
from conformance.diagnosis.crashes import describe_crash
from conformance.execution.executor import Executor
from conformance.execution.outcome import Broken, Execution, HarnessError, Malformed
from conformance.execution.simulated_ranks import can_be_simulated
from conformance.scenarios.drawn import Drawn
from pytest_ddp.errors import LackError

SHRINKING_RUNS = 60
_SHRINKING_RUNS_BROKEN = 15


@dataclass
class Search:
    """One check's search for a scenario that fails.

    The search for a smaller one is bounded by a number of runs, never by time: once they are spent, scenarios that have
    not run count as passing, and those that have keep their verdict. Runs that break cost more than those that end, and
    a hang ends the search at once.
    """

    component: Component
    check: Check
    executor: Executor
    examples: int = 0
    left: float = math.inf
    failure: tuple[Drawn, Violation] | None = None
    refused: Refused | None = None
    left_out: tuple[str, ...] = ()  # what was drawn, and is not claimed
    disagreement: str = ""  # what failed first on simulated ranks, and on no real ones

    def hold(self, drawn: Drawn) -> None:
        """Run one scenario and test the property; raise Violation if it does not hold."""
        if self.left <= 0 and not self.executor.knows(self.component, drawn):
            return
        self.examples += 1
        self.left -= 1
        wrong = self._wrong_on_simulated(drawn)
        if wrong == "":
            return
        execution = self.executor.run(self.component, drawn)
        try:
            self.judge(execution, drawn)
            self.disagreement = self.disagreement or wrong or ""
        except Violation as violation:
            self.failure, limit = (drawn, violation), SHRINKING_RUNS
            if isinstance(execution, Broken):
                limit = 0 if execution.hung else _SHRINKING_RUNS_BROKEN
            self.left = min(self.left, limit)
            raise
        except Refused as refusal:  # another scenario may show a silent error
            self.refused = refusal

    def running(self, drawn: Sequence[Drawn]) -> Generator[Drawn]:
        """Yield each when it may be held; meanwhile ranks carry out the next one. Close the iterator at the end."""
        executor, left = self.executor, list(drawn)
        if executor.simulated and all(can_be_simulated(self.component, one) for one in drawn):
            with suppress(HarnessError, LackError), closing(executor.simulated.ahead(self.component, drawn)) as ready:
                for one in ready:
                    left.remove(one)
                    yield one
            yield from left
        else:
            yield from executor.ahead(self.component, drawn)

    def _wrong_on_simulated(self, drawn: Drawn) -> str | None:
        """Return what is wrong on simulated ranks, "" if nothing is; None if they do not run this."""
        simulated = self.executor.simulated
        if simulated is None or not can_be_simulated(self.component, drawn):
            return None
        try:
            self.judge(simulated.run(self.component, drawn), drawn)
        except Violation as wrong:
            return str(wrong)
        except (NotOffered, HarnessError, LackError):  # real ranks say so too, or know better
            return None
        return ""

    def settle(self) -> None:
        """Raise Refused if the submission refused any scenario."""
        if self.refused:
            raise self.refused

    def judge(self, execution: Execution, drawn: Drawn) -> None:
        """Test the property on a run; raise Violation if it does not hold, Refused if it may be refused and was."""
        if isinstance(execution, Malformed):
            raise Violation(f"Rank {execution.rank} sent something that is no answer: {execution.message}")
        if isinstance(execution, Broken):
            if self.check.level == "extended" and execution.refusal:
                raise Refused(f"refused, as it may be: {execution.refusal}")
            raise Violation(describe_crash(execution, drawn))
        self.check.assertion(self.component.trial(drawn, execution))
