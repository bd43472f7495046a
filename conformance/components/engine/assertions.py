"""Assertions about engines: training is as in one process. An engine shows whole parameters, and no gradients."""

from dataclasses import replace
from functools import lru_cache

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch, mismatches
from conformance.checks.training import hold_frozen, initial_broadcast, ranks_stay_identical
from conformance.checks.trial import Trial
from conformance.checks.words import step_words
from conformance.components.sharded_optimizer.assertions import padding
from conformance.oracle.remembered import inputs_of
from conformance.oracle.tolerance import Limits, difference, scale_of, unit_roundoff
from conformance.oracle.training import Trajectory, outputs_before, train
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, Tensors

_REMEMBERED = 100
SINGLE = 1e-4  # of the largest update, in float32: rounding of gradients and of what the optimizer computes
HALF = 0.25  # the same, in bfloat16
_ROUNDINGS = 4  # of a parameter in each step


def trains(trial: Trial) -> None:
    """Hold everything that a scenario has to one process: parameters at the start and after steps, and outputs."""
    initial_broadcast(trial)
    hold_frozen(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)
    if trial.scenario.evaluates:
        _hold_evaluation(trial)
    if trial.scenario.twins:
        _hold(trial, "twin", "a second engine's parameter")


def training_equals_one_process(trial: Trial) -> None:
    """Hold whole parameters after every step to those of one process on the concatenated batches."""
    _hold(trial, "parameters", "the whole parameter")


def _hold(trial: Trial, which: str, words: str) -> None:
    right = expected_of(trial)
    for step, (wanted, limits) in enumerate(zip(right.parameters, right.parameter_limits, strict=True)):
        seen = (getattr(one, which)(step) for one in trial.observations)
        for rank, wrong in mismatches(seen, wanted, limits):
            raise Violation(
                f"On rank {rank} after {step_words(trial.scenario, step)}, {words} `{wrong.name}` is not what training "
                f"in one process gives: it {wrong.words}."
            )


def _hold_evaluation(trial: Trial) -> None:
    """Hold the output of the forward without gradients before each step to the model's."""
    scenario, inputs, expected = *exact(trial), expected_of(trial)
    for step in range(scenario.steps):
        outputs = outputs_before(scenario, inputs, expected, step)
        for rank, (seen, wanted) in enumerate(zip(trial.observations, outputs, strict=True)):
            limits = {"output": SINGLE * scale_of([wanted])} if trial.scenario.model.narrow else None
            if wrong := first_mismatch(seen.evaluation(step), {"output": wanted}, limits):
                raise Violation(
                    f"On rank {rank} before {step_words(scenario, step)}, the output of a forward in evaluation mode, "
                    f"without gradients, is not that of the model as it is by then: it {wrong.words}.",
                    "After a step, forward must compute with the new parameters, on every rank.",
                )


def state_is_sharded(trial: Trial) -> None:
    """Hold the ranks together to keeping the optimizer's state once, but for padding; they may keep less."""
    full, held = (
        sum(trial.expected.state_bytes.values()),
        [_held(one, rank) for rank, one in enumerate(trial.observations)],
    )
    if sum(held) > full + padding(trial):
        everyone = all(bytes_ >= full for bytes_ in held)
        raise Violation(
            f"The ranks hold {', '.join(map(str, held))} bytes of optimizer state, {sum(held)} in all; one unsharded "
            f"optimizer has {full}." + (" Every rank keeps the state of all parameters." if everyone else ""),
            "Give each rank's optimizer only the parameters, or the part of the flat ones, that the rank owns.",
        )


def _held(seen: Observation, rank: int) -> int:
    if not seen.state_bytes:
        what = "no torch optimizer" if seen.state_bytes is None else "no optimizer state"
        raise Violation(
            f"On rank {rank} {what} could be found in the process, so the state cannot be measured.",
            "Keep the state in an object of a class derived from `torch.optim.Optimizer`.",
        )
    return seen.state_bytes


def expected_of(trial: Trial) -> Trajectory:
    """Return what one process gives; where anything is narrower than float64, computed in float64, with wider limits.

    The judge follows no rounding here: an engine shows no gradients, and may keep parameters in another dtype.
    """
    return _narrow(trial.scenario, trial.seed) if trial.scenario.model.narrow else trial.expected


def exact(trial: Trial) -> tuple[Scenario, list[RankInputs]]:
    """Return the scenario and its inputs in float64."""
    return _in_float64(trial.scenario, trial.seed)


@lru_cache(_REMEMBERED)
def _narrow(scenario: Scenario, seed: int) -> Trajectory:
    right = train(*_in_float64(scenario, seed))
    start = right.starts[0]
    for step, after in enumerate(right.parameters):
        right.parameter_limits[step] = _limits(scenario, step, start, after)
    return right


def _limits(scenario: Scenario, step: int, start: Tensors, after: Tensors) -> Limits:
    """Return how far rounding may take each parameter: a share of the largest update, and its own roundings."""
    dtypes = scenario.model.dtypes
    share = HALF if "bfloat16" in {scenario.model.dtype, *dtypes.values()} else SINGLE
    moved = max(difference(value, start[name]) for name, value in after.items())
    rounded = {name: _ROUNDINGS * (step + 1) * unit_roundoff(dtypes[name]) * scale_of([after[name]]) for name in after}
    return {name: share * moved + rounded[name] for name in after}


def _in_float64(scenario: Scenario, seed: int) -> tuple[Scenario, list[RankInputs]]:
    wide = replace(scenario, model=scenario.model.in_float64)
    return wide, [
        RankInputs.from_names({n: v.double() if v.is_floating_point() else v for n, v in own.by_name().items()})
        for own in inputs_of(scenario, seed)
    ]
