"""What is behind a failure: whether it comes every time, and which known mistake it looks like."""

from conformance.cases import Case
from conformance.checks.check import NotOffered, Trial, Violation
from conformance.diagnosis import diagnose
from conformance.execution import Broken, Observed
from conformance.mishap import explain
from conformance.scenario import Scenario
from conformance.search import Search
from conformance.strategies.wrapper import PLAIN, widened

REPEATS = 10
_REPEATS_BROKEN = 3


def cause_of(search: Search, scenario: Scenario | Case, violation: Violation) -> str:
    """Return in words whether a failure comes every time, and which known mistake explains it, if any."""
    said = violation.advice or _explain(search, scenario)
    return "\n".join(part for part in (_race(search, scenario), said) if part)


def _race(search: Search, scenario: Scenario | Case) -> str:
    """Run what failed again, and say how often it fails, unless it always does."""
    execution = search.executor.run(search.component, scenario)
    repeats = _REPEATS_BROKEN if isinstance(execution, Broken) else REPEATS
    if isinstance(execution, Broken) and execution.hung:  # each takes as long as a run may
        repeats = 1
    failed = 1 + sum(_fails_again(search, scenario) for _ in range(repeats))
    if failed > repeats:
        return ""
    return (
        f"This is a race: with the same numbers, {failed} of {repeats + 1} runs failed. Something is used before it is "
        "ready, or depends on chance: a wait that is missing, a random choice, what an earlier run left behind."
    )


def _fails_again(search: Search, scenario: Scenario | Case) -> bool:
    try:
        search.judge(search.executor.run_again(search.component, scenario), scenario)
    except Violation:
        return True
    except NotOffered:
        pass
    return False


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
