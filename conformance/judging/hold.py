"""Looks for a scenario on which a component fails one check; keeps what failed last, which is the smallest."""

import math
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from conformance.checks.check import Check, NotOffered, Refused, Violation
from conformance.components.component import Component
from conformance.diagnosis.crashes import describe_crash
from conformance.execution.executor import Executor
from conformance.execution.outcome import Broken, Execution, HarnessError, Malformed
from conformance.execution.simulated_ranks import can_be_simulated
from conformance.protocol.codec import MalformedError
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from pytest_ddp.errors import LackError

SHRINKING_RUNS = 60
_SHRINKING_RUNS_BROKEN = 15
_FEW_RANKS = 3
NOT_SIMULATED = "simulated ranks do not run it as real ranks do: see docs/simulated-grading.md"


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
    on_real_ranks: Drawn | None = None  # the largest one, which does not run on simulated ranks
    certificate: str = ""  # what exploration has shown
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
        execution = self._run(drawn)
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
        """Yield each when it may be held; meanwhile ranks carry out the next one. Close the iterator at the end.

        Those of one world come one after another: their ranks keep their connections, and what they use in the caches.
        """
        executor, left = self.executor, list(drawn)
        if any(getattr(one, "simulated", False) for one in drawn):
            yield from drawn
        elif executor.simulated and all(can_be_simulated(self.component, one) for one in drawn):
            self.on_real_ranks = drawn[-1] if drawn else None
            ahead = executor.simulated.ahead(self.component, drawn[:-1])
            with suppress(HarnessError, LackError), closing(ahead) as ready:
                for one in ready:
                    left.remove(one)
                    yield one
            yield from left
        else:
            yield from executor.ahead(self.component, sorted(drawn, key=attrgetter("worlds")))

    def _run(self, drawn: Drawn) -> Execution:
        """Run this; raise NotOffered if it needs simulated ranks, and they cannot carry it out."""
        try:
            return self.executor.run(self.component, drawn)
        except HarnessError:
            if getattr(drawn, "simulated", False):
                raise NotOffered(NOT_SIMULATED) from None
            raise

    def _wrong_on_simulated(self, drawn: Drawn) -> str | None:
        """Return what is wrong on simulated ranks, "" if nothing is; None if they do not run this."""
        simulated = self.executor.simulated
        if simulated is None or drawn == self.on_real_ranks or not can_be_simulated(self.component, drawn):
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
        """Test the property on a run; raise Violation if it does not hold, Refused if it may be refused and was.

        Raise NotOffered if it does not hold on simulated ranks, and not on few of them that run in turn either: real
        ranks, which hold few to the same in other checks, decide whether it holds.
        """
        try:
            self._judge(execution, drawn)
        except Violation:
            if not isinstance(drawn, Scenario) or not drawn.simulated or self._holds_on_few(drawn):
                raise
            raise NotOffered(NOT_SIMULATED) from None

    def _holds_on_few(self, drawn: Scenario) -> bool:
        few = replace(drawn, world_size=_FEW_RANKS, order=())
        try:
            self._judge(self._run(few), few)
        except (Violation, NotOffered):
            return False
        return True

    def _judge(self, execution: Execution, drawn: Drawn) -> None:
        if isinstance(execution, Malformed):
            raise Violation(f"Rank {execution.rank} sent something that is no answer: {execution.message}")
        if isinstance(execution, Broken):
            if self.check.level == "extended" and execution.refusal:
                raise Refused(f"refused, as it may be: {execution.refusal}")
            raise Violation(describe_crash(execution, drawn))
        try:
            self.check.assertion(self.component.trial(drawn, execution))
        except MalformedError as error:
            raise Violation(f"A rank sent something that is no answer: {error}") from None
