"""Whether a scenario can tell right from wrong: on it, known mistakes must give obviously other numbers."""

from conformance.checks.check import UNSYNCHRONISED
from conformance.data import RankInputs, Tensors
from conformance.oracle import Trajectory, shard_gradients, train
from conformance.scenario import Scenario
from conformance.tolerance import difference, scale_of
from conformance.training_mistakes import BY_NAME


def tells_apart(scenario: Scenario, inputs: list[RankInputs], mistakes: tuple[str, ...]) -> bool:
    """Return whether each of these mistakes gives something obviously different from the oracle."""
    if not mistakes:
        return True
    expected = train(scenario, inputs)
    return all(
        _unsynchronised_differs(scenario, inputs, expected)
        if mistake == UNSYNCHRONISED
        else _ends_differ(train(BY_NAME[mistake].instead(scenario), inputs), expected)
        for mistake in mistakes
    )


def _unsynchronised_differs(scenario: Scenario, inputs: list[RankInputs], expected: Trajectory) -> bool:
    """Whether in every step, on every rank, training alone would give another gradient of some parameter."""
    return all(
        _obviously_different(own, expected.gradients[step])
        for step in range(scenario.steps)
        for own in shard_gradients(scenario, inputs, expected, step)
    )


def _ends_differ(wrong: Trajectory, expected: Trajectory) -> bool:
    return _obviously_different(wrong.parameters[-1], expected.parameters[-1])


def _obviously_different(seen: Tensors, expected: Tensors) -> bool:
    fellows = scale_of(expected.values())
    return any(difference(seen[name], wanted, fellows).obvious for name, wanted in expected.items() if name in seen)
