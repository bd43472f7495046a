"""Runs one check: Hypothesis draws scenarios, ranks run them, the judge compares, the smallest failure is kept."""

import hashlib
import time
import traceback
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException

from conformance.cases import Case
from conformance.cause import REPEATS, cause_of
from conformance.checks.check import Check, NotOffered, Violation
from conformance.contract import COMPONENTS
from conformance.execute import Executor, HarnessError
from conformance.scenario import Scenario
from conformance.search import Search
from conformance.strategies import Bounds
from conformance.vacuity import tells_apart

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
    @seeded(_draws(check, seed))
    @given(check.scenarios(bounds))
    def holds(scenario: Scenario | Case) -> None:
        if isinstance(scenario, Scenario) and not executor.knows(component, scenario):
            assume(tells_apart(scenario, executor.seed(scenario), check.rules_out))
        search.hold(scenario)

    status: Status = "passed"
    message = ""
    try:
        holds()
        search.settle()
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
    return Result(
        check, "failed", str(violation), cause_of(search, scenario, violation), scenario, search.examples, seconds
    )


def judged(search: Search, drawn: Scenario | Case) -> Result:
    """Hold a component to one check on one scenario or case; where it passes, again and again, in case it is a race."""
    try:
        search.hold(drawn)
        search.settle()
        for _ in range(REPEATS):
            search.judge(search.executor.run_again(search.component, drawn), drawn)
    except Violation as violation:
        return Result(search.check, "failed", str(violation), cause_of(search, drawn, violation), drawn, 1)
    except NotOffered as lack:
        return Result(search.check, "not_run", str(lack))
    return Result(search.check, "passed", examples=1)


def _draws(check: Check, seed: int) -> int:
    """Return the seed of a check's draws.

    Checks that draw alike draw the same scenarios, which then run once; and components are held to the same ones.
    """
    name = f"{seed}:{check.scenarios.__qualname__}:{check.rules_out}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
