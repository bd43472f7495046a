"""The record of a component: all that the judge knows of it. Adding one to `registry.py` adds the component."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.trial import CaseTrial, Trial
from conformance.execution.asked import Asked
from conformance.execution.outcome import Observed
from conformance.oracle.remembered import inputs_of
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors


def no_advice(_: Any) -> str:
    """Return no advice."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Component(Asked):
    """One thing that an assignment asks for.

    Attributes:
        about: what it is, in a sentence.
        checks: what it is held to, in this order.
        aspects: what it promises, with the points of each promise. Every core check belongs to one.
        start: the check that asks for equal weights on all ranks after wrapping. If it fails, those after it start from
            equal ones, so that it costs nothing else.
        carries: checks in float64. If one of them fails, and passes in float32, then float32 is what the component is
            judged in: the assignment has no other dtype.
        diagnose: names the known mistake behind a failed trial; the second trial, if any, has a larger model.
        advice: what to do where the submission raised an exception on what was drawn; may be empty.
    """

    about: str
    checks: tuple[Check, ...]
    aspects: tuple[Aspect, ...]
    start: str = ""
    carries: tuple[str, ...] = ()
    diagnose: Callable[[Any, Any], str] | None = None
    advice: Callable[[Any], str] = no_advice

    def trial(self, drawn: Any, seen: Observed) -> Trial | CaseTrial:
        """Return what the checks are given, of what was drawn and seen."""
        if self.answer is Observation:
            return trial_of_training(drawn, seen)
        return CaseTrial(drawn, self.numbers(drawn, seen.seed), seen.answers)


def training_numbers(drawn: Scenario, seed: int) -> list[list[Tensors]]:
    """Return what each rank is given for a training."""
    return [[own.by_name() for own in inputs_of(drawn, seed)]]


def trial_of_training(drawn: Scenario, seen: Observed) -> Trial:
    """Return what the checks of wrappers and optimizers are given."""
    observations = tuple(one for one in seen.answers[-1] if isinstance(one, Observation))
    return Trial(drawn, seen.seed, observations)
