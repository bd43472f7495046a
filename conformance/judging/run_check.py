"""Runs one check: scenarios are drawn, ranks run them, the judge compares, the smallest failure is kept."""

import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypedDict

from hypothesis.errors import HypothesisException

from conformance.checks.check import Check, NotOffered, Refused, Unclaimed, Violation
from conformance.components.component import Component
from conformance.execution.executor import Executor
from conformance.execution.outcome import HarnessError
from conformance.judging.draws import NOTHING_SPARED, Draws, Spared
from conformance.judging.exploring import holds_in_every_order
from conformance.judging.hold import Search
from conformance.judging.triage import REPEATS, When, cause_of
from conformance.scenarios.claims import EVERYTHING, Claims
from conformance.scenarios.drawn import Drawn
from conformance.strategies import Bounds
from pytest_ddp.errors import LackError

Status: TypeAlias = Literal["passed", "failed", "error", "not_run", "not_gradable"]


class Drawing(TypedDict):
    """The bounds of what is drawn: see `run_check`."""

    world_size: int
    seed: int
    examples: int
    claims: Claims


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        check: the check.
        status: error means a fault of ours; not_gradable, that this machine lacks what the submission needs.
        message: what is wrong, why the check did not run, or what it has shown beyond its property.
        diagnosis: which known mistake fits.
        scenario: the smallest one found that fails, or the smallest case.
        examples: scenarios or cases that were held to the property.
        seconds: how long it took.
        when: when it fails.
        cause: the same text for failures of one cause; empty if it is not known.
        refused: whether it did not run because the submission raised an exception on purpose.
        unclaimed: whether it did not run because of a claim.
        left_out: what was drawn, and is not claimed, in words.
        disagreement: what failed on simulated ranks, and not on real ones.
    """

    check: Check
    status: Status
    message: str = ""
    diagnosis: str = ""
    scenario: Drawn | None = None
    examples: int = 0
    seconds: float = 0.0
    when: When = "always"
    cause: str = ""
    refused: bool = False
    unclaimed: bool = False
    left_out: tuple[str, ...] = ()
    disagreement: str = ""


def run_check(
    component: Component,
    check: Check,
    executor: Executor,
    *,
    world_size: int,
    seed: int,
    examples: int,
    spared: Spared = NOTHING_SPARED,
    claims: Claims = EVERYTHING,
) -> Result:
    """Test one property of a component on up to `examples` scenarios of up to `world_size` ranks."""
    if claim := claims.leaves_out(component.name, check.id):
        return Result(check, "not_run", claim, unclaimed=True)
    drawing = Drawing(world_size=world_size, seed=seed, examples=examples, claims=claims)
    draws = replace(draws_of(component, check, executor.secret, **drawing), spared=spared)
    return _settled(Search(component, check, executor), partial(_run, draws=draws))


def draws_of(
    component: Component,
    check: Check,
    secret: str,
    *,
    world_size: int,
    seed: int,
    examples: int,
    claims: Claims = EVERYTHING,
) -> Draws:
    """Return what is drawn for a check: the same for every submission, unless it is spared something."""
    bounds = Bounds(world_size, bucketed=component.contract.takes_bucket_size)
    draws = Draws(check.scenarios, check.rules_out, bounds, seed, secret, examples)
    if claims == EVERYTHING:  # what was drawn ahead, and for other components, holds
        return draws
    return replace(draws, claims=claims, exact=check.exact, optimizer=component.contract.has_optimizer)


def judged(search: Search, drawn: Drawn) -> Result:
    """Test one property on one scenario or case; if it holds, repeat that: a race fails only sometimes."""
    return _settled(search, partial(_judged, drawn=drawn))


def _settled(search: Search, run: Callable[[Search], Result]) -> Result:
    """Run a check; run it again in new processes if it fails only in those that have run something before.

    The processes of a real run see one world and, mostly, one model.
    """
    result = run(search)
    if result.when == "left_behind":
        search.executor.isolate(search.component.name)
        result = run(Search(search.component, search.check, search.executor))
    return result


def _run(search: Search, draws: Draws) -> Result:
    started, without_failure = time.perf_counter(), partial(Result, search.check)
    try:
        search = _held(search, draws)
        result = _failed(search, *search.failure) if search.failure else without_failure("passed", search.certificate)
    except Unclaimed as claim:
        result = without_failure("not_run", str(claim), unclaimed=True)
    except NotOffered as lack:
        result = without_failure("not_run", str(lack), refused=isinstance(lack, Refused))
    except LackError as lack:
        result = without_failure("not_gradable" if search.check.level == "core" else "not_run", str(lack))
    except HarnessError as error:
        result = without_failure("error", str(error))
    except HypothesisException as error:
        result = without_failure("error", f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001  a fault of the judge must not end the grade
        result = without_failure("error", traceback.format_exc())
    seconds = time.perf_counter() - started
    result = replace(result, disagreement=search.disagreement, left_out=search.left_out)
    return replace(result, examples=search.examples, seconds=seconds)


def _failed(search: Search, drawn: Drawn, violation: Violation) -> Result:
    cause = cause_of(search, drawn, violation)
    words = str(violation), cause.diagnosis
    return Result(search.check, "failed", *words, drawn, search.examples, when=cause.when, cause=cause.name)


def _held(search: Search, draws: Draws) -> Search:
    """Test all scenarios that are drawn; if one fails, return the search for the smallest that fails.

    If all orders of a scenario could be run, nothing is drawn.
    """
    try:
        if holds_in_every_order(search, draws):
            return search
    except Violation:  # exploration has shrunk it
        return search
    drawn_ahead, search.left_out = draws.all(), draws.left_out
    if not drawn_ahead and draws.left_out:
        raise Unclaimed("; ".join(draws.left_out))
    try:
        with closing(search.running(drawn_ahead)) as running:
            for drawn in running:
                search.hold(drawn)
        search.settle()
    except Violation:
        smallest = Search(search.component, search.check, search.executor)
        with suppress(Violation, LackError):
            draws.hold(smallest.hold)
        return smallest if smallest.failure else search  # a failure counts, also if the second search finds none
    return search


def _judged(search: Search, drawn: Drawn) -> Result:
    try:
        search.hold(drawn)
        search.settle()
        for _ in range(REPEATS):
            search.judge(search.executor.run_again(search.component, drawn), drawn)
    except Violation as violation:
        return _failed(search, drawn, violation)
    except NotOffered as lack:
        return Result(search.check, "not_run", str(lack), refused=isinstance(lack, Refused))
    return Result(search.check, "passed", examples=1)
