"""Checks that compare numbers: gradients and parameters of every rank with the oracle's, after every step."""

import torch

from conformance.checks.check import Trial, Violation, element_apart, first_mismatch, listed, step_words
from conformance.oracle.training import outputs_before

_ROUNDED_APART = (
    "Both are right but for rounding, in another way on each rank, so that ranks drift apart: add up in the order of "
    "ranks, on all of them, or use `all_reduce`."
)


def runs_to_the_end(trial: Trial) -> None:
    """Wrapping, forward, backward and the optimizer's step run to their end on every rank.

    A rank that raised, died or hung never gets here; what is left to see is that every step took place.
    """
    for rank, seen in enumerate(trial.observations):
        if len(seen.losses) != trial.scenario.steps:
            raise Violation(f"Rank {rank} made {len(seen.losses)} steps; expected {trial.scenario.steps}.")


def initial_broadcast(trial: Trial) -> None:
    """After wrapping, every rank holds the parameters of rank 0, bit for bit.

    Ranks start from different weights. Wrapping must broadcast all of them, also those that do not train.
    """
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
    """After backward and `on_after_backward`, every gradient is the average over the ranks.

    It then equals the gradient of one process on the concatenated batches.
    """
    for step in range(trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            wrong = first_mismatch(
                seen.gradients(step), trial.expected.gradients[step], trial.expected.gradient_limits[step]
            )
            if wrong:
                ranks = trial.scenario.world_size
                right = f"the average over the {ranks} ranks" if ranks > 1 else "that of the bare model"
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, the gradient of `{wrong.name}` is not "
                    f"{right}: it {wrong.words}."
                )


def training_equals_one_process(trial: Trial) -> None:
    """After every optimizer step, every rank's parameters equal those of one process on the concatenated batches."""
    for step, wanted in enumerate(trial.expected.parameters):
        for rank, seen in enumerate(trial.observations):
            wrong = first_mismatch(seen.parameters(step), wanted, trial.expected.parameter_limits[step])
            if wrong:
                raise Violation(
                    f"On rank {rank} after {step_words(trial.scenario, step)}, the parameter `{wrong.name}` is not "
                    f"what training in one process gives: it {wrong.words}."
                )


def ranks_stay_identical(trial: Trial) -> None:
    """After every step, parameters are the same on all ranks, bit for bit."""
    for step in range(trial.scenario.steps):
        wanted = trial.observations[0].parameters(step)
        for rank, seen in enumerate(trial.observations):
            for name, value in seen.parameters(step).items():
                if not torch.equal(value, wanted[name]):
                    raise Violation(
                        f"After {step_words(trial.scenario, step)}, `{name}` on rank {rank} differs from rank 0's: "
                        f"{element_apart(value, wanted[name]).replace('expected', 'on rank 0')}.",
                        _ROUNDED_APART if _is_rounding(trial, step, name, value) else "",
                    )


def _is_rounding(trial: Trial, step: int, name: str, value: torch.Tensor) -> bool:
    """Whether a parameter that is another one on rank 0 is right but for rounding."""
    limits = {name: trial.expected.parameter_limits[step][name]}
    return first_mismatch({name: value}, {name: trial.expected.parameters[step][name]}, limits) is None


def frozen_parameters_stay(trial: Trial) -> None:
    """Parameters that do not require gradients keep rank 0's value, and the others train as in one process."""
    initial_broadcast(trial)
    for step in range(trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            for name in trial.scenario.model.frozen:
                value, wanted = seen.parameters(step)[name], seen.wrapped[name]
                if not torch.equal(value, wanted):
                    raise Violation(
                        f"The frozen parameter `{name}` moved on rank {rank} in {step_words(trial.scenario, step)}: "
                        f"{element_apart(value, wanted)}.",
                        "A parameter that does not require gradients must have none: not even zeros, since weight "
                        "decay and momentum then move it.",
                    )
    training_equals_one_process(trial)


def everything_together(trial: Trial) -> None:
    """What goes well by itself goes well together: layers, frozen parameters, keywords, clipping, schedules."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)


def tied_parameters(trial: Trial) -> None:
    """A parameter that two layers share stays shared, and its gradient is synchronised once."""
    tied = trial.scenario.model.tied or ()
    for rank, seen in enumerate(trial.observations):
        untied = [name for name in seen.extra_parameters if name in {f"layers.{index}.weight" for index in tied}]
        if untied:  # others, such as a flat one of all, are the wrapper's own business
            raise Violation(
                f"On rank {rank} the wrapped model has a parameter that the model does not have: "
                f"{listed(untied)}. Two layers shared a weight; wrapping gave each its own.",
                "Write received values into the parameters (`p.data.copy_(...)`); do not replace `module.weight`.",
            )
    gradients_averaged(trial)
    training_equals_one_process(trial)


def scalar_parameter(trial: Trial) -> None:
    """A parameter without dimensions trains like any other."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def non_contiguous_parameter(trial: Trial) -> None:
    """A parameter whose memory is not in row order trains like any other."""
    initial_broadcast(trial)
    gradients_averaged(trial)
    training_equals_one_process(trial)


def convolution(trial: Trial) -> None:
    """The weight of a convolution trains like any other, also where it is stored channels last."""
    initial_broadcast(trial)
    gradients_averaged(trial)
    training_equals_one_process(trial)


def layers_of_other_kinds(trial: Trial) -> None:
    """Models of other layers train as well: embeddings, norms, attention, residuals, modules used twice."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def gradient_clipping(trial: Trial) -> None:
    """Gradients clipped between `on_after_backward` and the optimizer's step are clipped as in one process."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def evaluation_between_steps(trial: Trial) -> None:
    """A forward in evaluation mode between two steps gives the model's output, changes nothing, needs no backward."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
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


def uneven_batches(trial: Trial) -> None:
    """Ranks with batches of different sizes, whose losses are weighted accordingly, train as one process."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def zero_grad_in_place(trial: Trial) -> None:
    """Training is right also with `zero_grad(set_to_none=False)`, which keeps the gradient tensors."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def forward_keywords(trial: Trial) -> None:
    """The wrapped model passes keyword arguments on to `forward`, also None, and where there are no others."""
    gradients_averaged(trial)


def one_rank(trial: Trial) -> None:
    """In a world of one rank, training is what it is without the wrapper."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
