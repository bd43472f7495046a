"""Looks for a scenario on which a component fails one check; keeps what failed last, which is the smallest."""

import math
from dataclasses import dataclass

from conformance.checks.check import Check, Refused, Violation
from conformance.components.component import Component
from conformance.diagnosis.crashes import describe_crash
from conformance.execution.executor import Executor
from conformance.execution.outcome import Broken, Execution, Malformed
from conformance.scenarios.drawn import Drawn

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

    def hold(self, drawn: Drawn) -> None:
        """Run one scenario and test the property; raise Violation if it does not hold."""
        if self.left <= 0 and not self.executor.knows(self.component, drawn):
            return
        self.examples += 1
        self.left -= 1
        execution = self.executor.run(self.component, drawn)
        try:
            self.judge(execution, drawn)
        except Violation as violation:
            self.failure, limit = (drawn, violation), SHRINKING_RUNS
            if isinstance(execution, Broken):
                limit = 0 if execution.hung else _SHRINKING_RUNS_BROKEN
            self.left = min(self.left, limit)
            raise
        except Refused as refusal:  # another scenario may show a silent error
            self.refused = refusal

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
