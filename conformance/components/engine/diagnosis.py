"""Names the mistake behind an engine's wrong parameters, which are all that it shows.

For the first step, each known wrong gradient is given to the optimizer in one process: the parameters tell which fits.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from conformance.checks.trial import Trial
from conformance.components.engine.assertions import exact, expected_of
from conformance.diagnosis.gradient_mistakes import GRADIENT_MISTAKES, GradientMistake, Shards
from conformance.diagnosis.gradients import UNKNOWN, initial_values
from conformance.diagnosis.parameters import diagnose_parameters
from conformance.oracle.tolerance import equal
from conformance.oracle.training import shard_gradients
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors
from conformance.workload.schedule import OPTIMIZERS


def diagnose(trial: Trial, _wider: Trial | None = None) -> str:
    """Return the known mistake that explains a failed trial, in words, or `UNKNOWN`."""
    return initial_values(trial) or _wrong_gradient(trial) or diagnose_parameters(trial) or UNKNOWN


def _wrong_gradient(trial: Trial) -> str:
    """Return the mistake that gives what the ranks have after the first step, in words; empty if none does."""
    right, limits = expected_of(trial).parameters[0], expected_of(trial).parameter_limits[0]
    seen = [one.parameters(0) for one in trial.observations]
    if all(equal(one[name], wanted, limits[name]) for one in seen for name, wanted in right.items()):
        return ""
    for mistake in GRADIENT_MISTAKES.values():
        moved = [_moved(trial, mistake, rank) for rank in range(trial.scenario.world_size)]
        if all(_is_any(one[name], moved, name, limits[name]) for one, name in product(seen, right)):
            return (
                f"Looks like *{mistake.name}*: at step 1, the gradient that the engine's optimizer used is "
                f"{mistake.seen}. {mistake.advice}"
            )
    return ""


def _is_any(seen: torch.Tensor, moved: Sequence[Tensors], name: str, limit: float) -> bool:
    """Whether a parameter is what the mistake gives on any rank: an owner sends its own result to all."""
    return any(equal(seen, one[name], limit) for one in moved)


def _moved(trial: Trial, mistake: GradientMistake, rank: int) -> Tensors:
    """Return the parameters after the first step of an optimizer with a rank's mistaken gradients."""
    scenario, inputs = exact(trial)
    expected = expected_of(trial)
    own = shard_gradients(scenario, inputs, expected, 0)
    last = shard_gradients(scenario, inputs, expected, 0, last=True) if scenario.micro_batches > 1 else []
    gradients: Tensors = {}
    for name, right in expected.gradients[0].items():
        parts, lasts = (tuple(one.get(name, torch.zeros_like(right)) for one in of) for of in (own, last))
        value = mistake.value(Shards(right, parts, rank, None, lasts))
        gradients[name] = right if value is None else value
    return _stepped(scenario, expected.starts[0], gradients)


def _stepped(scenario: Scenario, start: Tensors, gradients: Tensors) -> Tensors:
    """Return the parameters after one step of the scenario's optimizer."""
    named = {name: torch.nn.Parameter(value.clone(), name in gradients) for name, value in start.items()}
    for name, gradient in gradients.items():
        named[name].grad = gradient.clone()
    options: dict[str, Any] = {**scenario.optimizer.options}
    OPTIMIZERS[scenario.optimizer.kind](named.values(), **options).step()
    return {name: parameter.detach() for name, parameter in named.items()}
