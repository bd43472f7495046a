"""Runs one check: Hypothesis draws scenarios, ranks run them, the judge compares, the smallest failure is kept."""

import hashlib
import time
import traceback
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException

from conformance.cases import Case
from conformance.checks.check import CaseTrial, Check, NotOffered, Trial, Violation
from conformance.contract import COMPONENTS
from conformance.diagnosis import diagnose
from conformance.execute import Answered, Broken, Execution, Executor, HarnessError, Malformed, Observed
from conformance.mishap import explain, say
from conformance.scenario import Scenario
from conformance.strategies import Bounds
from conformance.strategies.wrapper import PLAIN, widened
from conformance.vacuity import tells_apart

SHRINKING_RUNS = 60
_SHRINKING_RUNS_BROKEN = 15
Status: TypeAlias = Literal["passed", "failed", "error", "not_run"]


@dataclass(frozen=True)
class Result:
    """What became of one check.

    Attributes:
        check: the check.
        status: error means a fault of ours.
        message: what is wrong, or why the check did not run.
        diagnosis: which known mistake fits.
        scenario: the smallest one found that fails, or the smallest case.
        examples: scenarios or cases that were held to the property.
        seconds: how long it took.
    """

    check: Check
    status: Status
    message: str = ""
    diagnosis: str = ""
    scenario: Scenario | Case | None = None
    examples: int = 0
    seconds: float = 0.0


@dataclass
class Search:
    """One check's search for a scenario that fails.

    The search for a smaller one is bounded by a number of runs, never by time: once they are spent, scenarios that have
    not run count as passing, and those that have keep their verdict. Runs that break cost more than those that end, and
    a hang ends the search at once.
    """

    component: str
    check: Check
    executor: Executor
    examples: int = 0
    left: int | None = None
    failures: dict[str, tuple[Scenario | Case, Violation]] = field(default_factory=dict)
    last: str = ""

    def hold(self, scenario: Scenario | Case) -> None:
        """Hold one scenario to the property; raise Violation if it fails."""
        key = self.executor.key(self.component, scenario)
        if self.left is not None and self.left <= 0 and not self.executor.knows(self.component, scenario):
            return
        self.examples += 1
        if self.left is not None:
            self.left -= 1
        execution = self.executor.run(self.component, scenario)
        try:
            self._judge(execution, scenario)
        except Violation as violation:
            self.failures[key], self.last = (scenario, violation), key
            limit = 0 if isinstance(execution, Broken) and execution.hung else SHRINKING_RUNS
            limit = min(limit, _SHRINKING_RUNS_BROKEN) if isinstance(execution, Broken) else limit
            self.left = limit if self.left is None else min(self.left, limit)
            raise

    def _judge(self, execution: Execution, scenario: Scenario | Case) -> None:
        if isinstance(execution, Malformed):
            raise Violation(f"Rank {execution.rank} sent something that is no observation: {execution.message}")
        if isinstance(execution, Broken):
            raise Violation(say(execution, scenario))
        self.check.function(_trial(execution, scenario))


def run_check(component: str, check: Check, executor: Executor, *, world_size: int, seed: int, examples: int) -> Result:
    """Hold a component to one check on up to `examples` scenarios of up to `world_size` ranks."""
    started = time.perf_counter()
    search = Search(component, check, executor)
    bounds = Bounds(world_size, bucketed=len(COMPONENTS[component].get.parameters) > 1)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @seeded(_draws(component, check, seed))
    @given(check.scenarios(bounds))
    def holds(scenario: Scenario | Case) -> None:
        if isinstance(scenario, Scenario) and not executor.knows(component, scenario):
            assume(tells_apart(scenario, executor.inputs(scenario), check.rules_out))
        search.hold(scenario)

    status: Status = "passed"
    message = ""
    try:
        holds()
    except Violation:
        status = "failed"
    except NotOffered as lack:
        status, message = "not_run", str(lack)
    except HarnessError as error:
        status, message = "error", str(error)
    except HypothesisException as error:
        status, message = "error", f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  whatever goes wrong on this side is ours, and must not end the grading
        status, message = "error", traceback.format_exc()
    seconds = time.perf_counter() - started
    if status != "failed":
        return Result(check, status, message, examples=search.examples, seconds=seconds)
    scenario, violation = search.failures[search.last]
    diagnosis = violation.advice or _explain(search, scenario)
    return Result(check, "failed", str(violation), diagnosis, scenario, search.examples, seconds)


def judged(search: Search, drawn: Scenario | Case) -> Result:
    """Hold a component to one check on one scenario or case."""
    try:
        search.hold(drawn)
    except Violation as violation:
        return Result(search.check, "failed", str(violation), violation.advice or _explain(search, drawn), drawn, 1)
    except NotOffered as lack:
        return Result(search.check, "not_run", str(lack))
    return Result(search.check, "passed", examples=1)


def _trial(execution: Observed | Answered, scenario: Scenario | Case) -> Trial | CaseTrial:
    if isinstance(execution, Observed) and isinstance(scenario, Scenario):
        return Trial(scenario, execution.inputs, execution.observations)
    if isinstance(execution, Answered):
        return CaseTrial(scenario, execution.given, execution.answers)
    raise TypeError(f"{scenario!r} is no scenario, and was run as one")


def _explain(search: Search, scenario: Scenario | Case) -> str:
    """Return what known mistake is behind a failure; checks of cases say it themselves."""
    execution = search.executor.run(search.component, scenario)
    if isinstance(execution, Broken):
        return explain(execution, scenario)
    if isinstance(execution, Observed) and isinstance(scenario, Scenario):
        trial = Trial(scenario, execution.inputs, execution.observations)
        return diagnose(trial, _wider(search, scenario))
    return ""


def _wider(search: Search, scenario: Scenario) -> Trial | None:
    """Return the trial of a plain scenario with a larger model and more than one bucket, if it ends."""
    if scenario.model.trainable != tuple(scenario.model.shapes) or search.check.scenarios not in PLAIN:
        return None
    larger = widened(scenario)
    execution = search.executor.run(search.component, larger)
    return Trial(larger, execution.inputs, execution.observations) if isinstance(execution, Observed) else None


def _draws(component: str, check: Check, seed: int) -> int:
    """Return the seed of a check's draws; checks that draw alike draw the same scenarios, which then run once."""
    name = f"{seed}:{component}:{check.scenarios.__qualname__}:{check.rules_out}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
