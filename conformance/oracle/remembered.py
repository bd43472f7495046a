"""Inputs and right results of scenarios, computed once for all components. Callers must not change them."""

from functools import lru_cache

from conformance.oracle.training import Trajectory, train
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, draw_inputs

_REMEMBERED = 400  # what one component is held to: the next one of its kind is held to the same


def inputs_of(scenario: Scenario, seed: int) -> list[RankInputs]:
    """Return every rank's inputs, as `draw_inputs` does."""
    return _inputs_of(scenario.unbucketed, seed)


def right_training(scenario: Scenario, seed: int) -> Trajectory:
    """Return the right training on these inputs, as `train` does without `follow`."""
    return _right_training(scenario.unbucketed, seed)


@lru_cache(_REMEMBERED)
def _inputs_of(text: str, seed: int) -> list[RankInputs]:
    return draw_inputs(Scenario.from_text(text), seed)


@lru_cache(_REMEMBERED)
def _right_training(text: str, seed: int) -> Trajectory:
    return train(Scenario.from_text(text), _inputs_of(text, seed))
