"""Runs one check: scenarios are drawn, ranks run them, the judge compares, the smallest failure is kept."""

import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis.errors import HypothesisException

from conformance.checks.check import Check, NotOffered, Violation
from conformance.components.component import Component
from conformance.execution.executor import Executor
from conformance.execution.outcome import HarnessError
from conformance.judging.draws import Draws, Spared
from conformance.judging.hold import Search
from conformance.judging.triage import REPEATS, cause_of
from conformance.scenarios.drawn import Drawn
from conformance.strategies import Bounds

Status: TypeAlias = Literal["passed", "failed", "error", "not_run"]


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        check: the check.
        status: error means a fault of ours.
        message: what is wrong, or why the check did not run.
        diagnosis: which known mistake fits.
        scenario: the smallest one found that fails, or the smallest case.
        examples: scenarios or cases that were held to the property.
        seconds: how long it took.
        hash_apart: whether it failed only where ranks do not agree on `hash`.
        left_behind: whether it failed only in processes that had run something before: no verdict to be told.
        race: whether it failed only sometimes, with the same numbers.
    """

    check: Check
    status: Status
    message: str = ""
    diagnosis: str = ""
    scenario: Drawn | None = None
    examples: int = 0
    seconds: float = 0.0
    hash_apart: bool = False
    left_behind: bool = False
    race: bool = False


def run_check(
    component: Component,
    check: Check,
    executor: Executor,
    *,
    world_size: int,
    seed: int,
    examples: int,
    spared: Spared = Spared(),
) -> Result:
    """Test one property of a component on up to `examples` scenarios of up to `world_size` ranks.

    The processes of a real run see one world and, mostly, one model: what fails only in those that have run something
    before is held to the check again, in new ones.
    """
    bounds = Bounds(world_size, bucketed=component.contract.takes_bucket_size)
    draws = Draws(check.scenarios, check.rules_out, bounds, seed, executor.secret, examples, spared)
    result = _run(Search(component, check, executor), draws)
    if result.left_behind:
        executor.isolate(component.name)
        result = _run(Search(component, check, executor), draws)
    return result


def _run(search: Search, draws: Draws) -> Result:
    started, check = time.perf_counter(), search.check
    status: Status = "passed"
    message = ""
    try:
        search = _held(search, draws)
    except NotOffered as lack:
        status, message = "not_run", str(lack)
    except HarnessError as error:
        status, message = "error", str(error)
    except HypothesisException as error:
        status, message = "error", f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  a fault of the judge must not end the grade
        status, message = "error", traceback.format_exc()
    seconds = time.perf_counter() - started
    if status != "passed" or not search.failures:
        return Result(check, status, message, examples=search.examples, seconds=seconds)
    return _failed(search, *search.failures[search.last], seconds)


def _failed(search: Search, drawn: Drawn, violation: Violation, seconds: float = 0.0) -> Result:
    cause = cause_of(search, drawn, violation)
    return Result(
        search.check,
        "failed",
        str(violation),
        cause.said,
        drawn,
        search.examples,
        seconds,
        cause.hash_apart,
        cause.left_behind,
        cause.race,
    )


def _held(search: Search, draws: Draws) -> Search:
    """Test all scenarios that are drawn; if one fails, return the search for the smallest that fails."""
    try:
        with closing(search.executor.ahead(search.component, draws.all())) as running:
            for drawn in running:
                search.hold(drawn)
        search.settle()
    except Violation:
        smallest = Search(search.component, search.check, search.executor)
        with suppress(Violation):
            draws.hold(smallest.hold)
        return smallest if smallest.failures else search  # a failure counts, also if the second search finds none
    return search


def judged(search: Search, drawn: Drawn) -> Result:
    """Test one property on one scenario or case; if it holds, repeat that: a race fails only sometimes."""
    result = _judged(search, drawn)
    if result.left_behind:
        search.executor.isolate(search.component.name)
        result = _judged(Search(search.component, search.check, search.executor), drawn)
    return result


def _judged(search: Search, drawn: Drawn) -> Result:
    try:
        search.hold(drawn)
        search.settle()
        for _ in range(REPEATS):
            search.judge(search.executor.run_again(search.component, drawn), drawn)
    except Violation as violation:
        return _failed(search, drawn, violation)
    except NotOffered as lack:
        return Result(search.check, "not_run", str(lack))
    return Result(search.check, "passed", examples=1)
