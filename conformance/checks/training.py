"""Assertions that compare numbers: gradients and parameters of every rank with the oracle's, after every step."""

from collections.abc import Callable, Iterator, Sequence

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import Mismatch, element_apart, first_mismatch, mismatches
from conformance.checks.trial import Trial
from conformance.checks.words import listed, step_words
from conformance.oracle.tolerance import Limits
from conformance.oracle.training import outputs_before
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Unfreeze
from conformance.workload.numbers import Tensors

_ROUNDED_APART = (
    "Both are right but for rounding, in another way on each rank, so that ranks drift apart: add up in the order of "
    "ranks, on all of them, or use `all_reduce`."
)


def trains(trial: Trial) -> None:
    """Hold everything that a scenario has to one process: parameters at the start, gradients, parameters, outputs."""
    _hold_tied(trial)
    if not (trial.scenario.replicated or trial.scenario.averaged):
        initial_broadcast(trial)
    hold_frozen(trial)
    if not trial.scenario.replicated:
        gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)
    if trial.scenario.evaluates:
        _hold_evaluation(trial)
    if trial.scenario.twins:
        _hold_twin(trial)


def runs_to_the_end(trial: Trial) -> None:
    """Hold the number of steps; a rank that raised, died or hung has failed before."""
    for rank, seen in enumerate(trial.observations):
        if len(seen.losses) != trial.scenario.steps:
            raise Violation(f"Rank {rank} made {len(seen.losses)} steps; expected {trial.scenario.steps}.")


def initial_broadcast(trial: Trial) -> None:
    """Hold parameters right after wrapping to rank 0's, bit for bit, also those that do not train."""
    for rank, seen in enumerate(trial.observations):
        for name, wanted in trial.inputs[0].weights.items():
            value = seen.wrapped[name]
            if value.shape != wanted.shape or not torch.equal(value, wanted):
                own = torch.equal(value, trial.inputs[rank].weights[name]) and rank > 0
                raise Violation(
                    f"Right after wrapping, `{name}` on rank {rank} is not rank 0's: {element_apart(value, wanted)}."
                    + (f" It is still rank {rank}'s own initial value." if own else "")
                )


def gradients_averaged(trial: Trial) -> None:
    """Hold every gradient to the average over the ranks, which is that of one process on the concatenated batches."""
    ranks, expected = trial.scenario.world_size, trial.expected
    right = f"the average over the {ranks} ranks" if ranks > 1 else "that of the bare model"
    for rank, step, wrong in _mismatches(trial, Observation.gradients, expected.gradients, expected.gradient_limits):
        raise Violation(f"On rank {rank} at {step}, the gradient of `{wrong.name}` is not {right}: it {wrong.words}.")


def training_equals_one_process(trial: Trial) -> None:
    """Hold parameters after every step to those of one process on the concatenated batches."""
    expected = trial.expected
    for rank, step, wrong in _mismatches(trial, Observation.parameters, expected.parameters, expected.parameter_limits):
        raise Violation(
            f"On rank {rank} after {step}, the parameter `{wrong.name}` is not what training in one process gives: it "
            f"{wrong.words}."
        )


def _mismatches(
    trial: Trial, seen: Callable[[Observation, int], Tensors], right: Sequence[Tensors], limits: Sequence[Limits]
) -> Iterator[tuple[int, str, Mismatch]]:
    """Yield rank, step and first mismatch of what was seen, wherever there is one; `right` and `limits` are by step."""
    for step, (wanted, limit) in enumerate(zip(right, limits, strict=True)):
        for rank, wrong in mismatches((seen(one, step) for one in trial.observations), wanted, limit):
            yield rank, step_words(trial.scenario, step), wrong


def ranks_stay_identical(trial: Trial) -> None:
    """Hold parameters after every step to be the same on all ranks, bit for bit."""
    firsts = [trial.observations[0].parameters(step) for step in range(trial.scenario.steps)]
    for step, rank, name, value in _parameters(trial):
        if not torch.equal(value, firsts[step][name]):
            raise Violation(
                f"After {step_words(trial.scenario, step)}, `{name}` on rank {rank} differs from rank 0's: "
                f"{element_apart(value, firsts[step][name]).replace('expected', 'on rank 0')}.",
                _ROUNDED_APART if _is_rounding(trial, step, name, value) else "",
            )


def _parameters(trial: Trial) -> Iterator[tuple[int, int, str, torch.Tensor]]:
    """Yield step, rank, name and value of each parameter after each step."""
    for step in range(trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            yield from ((step, rank, name, value) for name, value in seen.parameters(step).items())


def _is_rounding(trial: Trial, step: int, name: str, value: torch.Tensor) -> bool:
    """Whether a parameter that is another one on rank 0 is right but for rounding."""
    limits = {name: trial.expected.parameter_limits[step][name]}
    return first_mismatch({name: value}, {name: trial.expected.parameters[step][name]}, limits) is None


def _hold_tied(trial: Trial) -> None:
    """Hold a weight that two layers share to stay one; other further parameters, such as a flat one, are allowed."""
    tied = {f"layers.{index}.weight" for index in trial.scenario.model.tied or ()}
    for rank, seen in enumerate(trial.observations):
        if untied := [name for name in seen.extra_parameters if name in tied]:
            raise Violation(
                f"On rank {rank} the wrapped model has a parameter that the model does not have: "
                f"{listed(untied)}. Two layers shared a weight; wrapping gave each its own.",
                "Write received values into the parameters (`p.data.copy_(...)`); do not replace `module.weight`.",
            )


def hold_frozen(trial: Trial) -> None:
    """Hold parameters that never require gradients to their initial values, bit for bit."""
    frozen, initial = trial.scenario.model.frozen, trial.inputs[0].weights
    if any(isinstance(event, Unfreeze) for event in trial.scenario.schedule):
        return
    for step, rank, name, value in _parameters(trial):
        if name in frozen and not torch.equal(value, initial[name]):
            raise Violation(
                f"The frozen parameter `{name}` moved on rank {rank} in {step_words(trial.scenario, step)}: "
                f"{element_apart(value, initial[name])}.",
                "A parameter that does not require gradients must have none: not even zeros, since weight decay and "
                "momentum then move it.",
            )


def _hold_evaluation(trial: Trial) -> None:
    """Hold the output of the forward in evaluation mode before each step to the model's."""
    for step in range(trial.scenario.steps):
        wanted = outputs_before(trial.scenario, trial.inputs, trial.expected, step)
        for rank, seen in enumerate(trial.observations):
            wrong = first_mismatch(seen.evaluation(step), {"output": wanted[rank]})
            if wrong:
                raise Violation(
                    f"On rank {rank} before {step_words(trial.scenario, step)}, the output of a forward in evaluation "
                    f"mode, without gradients, is not the model's: it {wrong.words}.",
                    "Return what the model returns, whichever way the wrapper's `forward` takes.",
                )


def _hold_twin(trial: Trial) -> None:
    """Hold a second wrapped model's gradients, or a second optimizer's parameters, to what they are alone.

    The second model makes no steps, so its gradients are those of the first step.
    """
    expected, steps = trial.expected, trial.scenario.steps
    right, limits = expected.gradients[:1] * steps, expected.gradient_limits[:1] * steps
    what, whole = "gradient of", "wrapped model"
    if trial.scenario.replicated:
        right, limits, what, whole = expected.parameters, expected.parameter_limits, "parameter", "optimizer"
    for rank, step, wrong in _mismatches(trial, Observation.twin, right, limits):
        raise Violation(
            f"On rank {rank} at {step}, the {what} `{wrong.name}` of a second {whole} is not that of one process: it "
            f"{wrong.words}."
        )
