"""Finds the cause of a failure: does it come every time, and which known mistake explains it?"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from conformance.checks.check import NotOffered, Violation
from conformance.checks.trial import Trial
from conformance.checks.words import RACE
from conformance.components.component import trial_of_training
from conformance.diagnosis.causes import cause_of_failure
from conformance.diagnosis.crashes import advise_on_crash
from conformance.execution.outcome import Broken, Execution, Observed
from conformance.judging.hold import Search
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.strategies.wrapper import PLAIN, widened
from pytest_ddp.outcomes.outcome import Raised

REPEATS = 10
_REPEATS_BROKEN = 3
HASH_APART = (
    "This fails only if the ranks disagree on the `hash` of a text, as ranks that torchrun starts do: each rank sees a "
    "set of names in another order. Take an order that all ranks must share from a list or a dict, or sort the names; "
    "deal by number, not by `hash`."
)


When: TypeAlias = Literal["always", "sometimes", "hash_apart", "left_behind"]


class Cause(NamedTuple):
    """The cause of a failure.

    Attributes:
        diagnosis: whether it comes every time, and which known mistake explains it; empty if nothing is known.
        name: the same text for failures of one cause; empty if the cause is not known.
        when: whether it comes always, sometimes with the same numbers, only where ranks do not agree on `hash`, or only
            in processes that have run something before, which is no verdict.
    """

    diagnosis: str
    name: str = ""
    when: When = "always"


def cause_of(search: Search, scenario: Drawn, violation: Violation) -> Cause:
    """Find the cause of a failure."""
    if getattr(scenario, "simulated", False):  # such ranks hash texts alike, and each run of them is the same
        return _explained(search, scenario, violation, race="")
    execution, afresh = search.executor.run(search.component, scenario), search.executor.run_afresh
    fails = partial(_fails_again, search, scenario)
    # A hang takes until its deadline. If new ranks that hash alike hang too, more runs would teach nothing.
    alike = fails(partial(afresh, alike=True)) if isinstance(execution, Broken) and execution.hung else None
    race = "" if alike else _race(search, scenario, execution)
    if not race and alike is None:
        alike = fails(partial(afresh, alike=True))
    if not (race or alike):
        if not fails(afresh):
            return Cause("", when="left_behind")
        failed = sum(fails(partial(afresh, alike=True)) for _ in range(_REPEATS_BROKEN))
        if not failed:
            return Cause(HASH_APART, HASH_APART, "hash_apart")
        race = _by_chance(1 + failed, 2 + _REPEATS_BROKEN)  # what failed on new ranks
    return _explained(search, scenario, violation, race)


def _explained(search: Search, scenario: Drawn, violation: Violation, race: str) -> Cause:
    execution = search.executor.run(search.component, scenario)
    advice = violation.advice or _explain(search, scenario)
    said = "\n".join(part for part in (race, search.check.advice, advice) if part)
    return Cause(said, cause_of_failure(advice, execution), "sometimes" if race else "always")


def _race(search: Search, scenario: Drawn, execution: Execution) -> str:
    """Run the failing scenario again; say how often it fails, unless it always fails."""
    repeats = REPEATS if not isinstance(execution, Broken) else 1 if execution.hung else _REPEATS_BROKEN
    failed = 1 + sum(_fails_again(search, scenario, search.executor.run_again) for _ in range(repeats))
    return "" if failed > repeats else _by_chance(failed, repeats + 1)


def _by_chance(failed: int, runs: int) -> str:
    return (
        f"{RACE}: with the same numbers, {failed} of {runs} runs failed. Something is used before it is "
        "ready, or depends on chance: a wait that is missing, a random choice, what an earlier run left behind."
    )


def _fails_again(search: Search, scenario: Drawn, run: Callable[..., Execution]) -> bool:
    try:
        search.judge(run(search.component, scenario), scenario)
    except (Violation, NotOffered) as found:
        return isinstance(found, Violation)
    return False


def _explain(search: Search, drawn: Drawn) -> str:
    """Return the known mistake that explains a failure; checks of cases give their own advice."""
    component, execution = search.component, search.executor.run(search.component, drawn)
    if isinstance(execution, Broken):
        advice = component.advice(drawn) if isinstance(execution.root, Raised) else ""
        return advice or advise_on_crash(execution, drawn, search.executor.location)
    if isinstance(execution, Observed) and component.diagnose:
        return component.diagnose(component.trial(drawn, execution), _wider(search, drawn))
    return ""


def _wider(search: Search, drawn: Drawn) -> Trial | None:
    """Return the trial of a plain scenario with a larger model and more than one bucket, if it ends."""
    if not isinstance(drawn, Scenario) or search.check.scenarios not in PLAIN or drawn.model.frozen:
        return None
    larger = widened(drawn)
    execution = search.executor.run(search.component, larger)
    return trial_of_training(larger, execution) if isinstance(execution, Observed) else None
