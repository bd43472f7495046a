"""Whether a scenario can tell right from wrong: on it, known mistakes must give obviously other numbers."""

from functools import lru_cache
from itertools import product

import torch

from conformance.diagnosis.gradient_mistakes import GRADIENT_MISTAKES, Shards
from conformance.diagnosis.training_mistakes import TRAINING_MISTAKES
from conformance.oracle.remembered import inputs_of, right_training
from conformance.oracle.tolerance import Limits, difference, vacuity_factor
from conformance.oracle.training import Trajectory, parameters_after_steps, shard_gradients, train
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, Tensors

_REMEMBERED = 10_000


def tells_apart(drawn: Drawn, seed: int, mistakes: tuple[str, ...]) -> bool:
    """Return whether each of these mistakes gives something obviously different from the oracle.

    Args:
        drawn: the scenario. Components are held to the same ones, so answers are kept for those that come later.
        seed: what its numbers are drawn from.
        mistakes: names of known mistakes.
    """
    return not mistakes or (isinstance(drawn, Scenario) and _tells_apart(drawn.unbucketed, seed, mistakes))


@lru_cache(_REMEMBERED)
def _tells_apart(scenario: Scenario, seed: int, mistakes: tuple[str, ...]) -> bool:
    inputs = inputs_of(scenario, seed)
    factor, expected = vacuity_factor(scenario), right_training(scenario, seed)
    gradients = [name for name in mistakes if name in GRADIENT_MISTAKES]
    trainings = [name for name in mistakes if name not in GRADIENT_MISTAKES]
    return _gradients_differ(gradients, scenario, inputs, expected, factor) and all(
        _training_differs(name, scenario, inputs, expected, factor) for name in trainings
    )


def _gradients_differ(
    mistakes: list[str], scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, factor: float
) -> bool:
    """Whether in every step that has gradients, on every rank, each mistake would give another gradient."""
    for step, right in enumerate(expected.gradients if mistakes else ()):
        own, limits = shard_gradients(scenario, inputs, expected, step), expected.gradient_limits[step]
        for rank, mistake in product(range(scenario.world_size if right else 0), mistakes):
            wrong = {name: _mistaken(mistake, own, rank, name, value) for name, value in right.items()}
            if not _obviously_different(wrong, right, limits, factor):
                return False
    return True


def _mistaken(mistake: str, own: list[Tensors], rank: int, name: str, right: torch.Tensor) -> torch.Tensor:
    parts = tuple(one.get(name, torch.zeros_like(right)) for one in own)
    value = GRADIENT_MISTAKES[mistake].value(Shards(right, parts, rank, None))
    return right if value is None else value


def _training_differs(
    mistake: str, scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, factor: float
) -> bool:
    """Whether training with a mistake would be told from right training after some step."""
    mistaken = TRAINING_MISTAKES[mistake].instead(scenario)
    after_steps = parameters_after_steps(mistaken, inputs)  # computed up to the first step that differs
    if scenario.followed:
        wrong = train(mistaken, inputs)
        after_steps, expected = iter(wrong.parameters), train(scenario, inputs, follow=wrong)
    rights = zip(expected.parameters, expected.parameter_limits, strict=True)
    return any(_obviously_different(wrong, *right, factor) for wrong, right in zip(after_steps, rights, strict=True))


def _obviously_different(seen: Tensors, expected: Tensors, limits: Limits, factor: float) -> bool:
    return any(
        difference(seen[name], wanted) > factor * limits[name] for name, wanted in expected.items() if name in seen
    )
