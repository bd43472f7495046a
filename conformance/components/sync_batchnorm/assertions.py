"""Assertions about synchronised batch norm: on N ranks it is what batch norm is on the concatenated batch."""

import torch
from torch.nn.functional import batch_norm

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, never_awaited
from conformance.components.sync_batchnorm.whole_batch import (
    whole,
    wrong_input_gradient,
    wrong_output,
    wrong_statistics,
)
from conformance.workload.numbers import under


def normalises(trial: CaseTrial) -> None:
    """Hold outputs, gradients of inputs and running statistics to those of one process."""
    forward(trial)
    if not trial.case.without_gradients:
        backward(trial)
    problem, advice = wrong_statistics(trial)
    if problem:
        raise Violation(problem, advice)


def forward(trial: CaseTrial) -> None:
    """Hold outputs to those of one process."""
    problem, advice = wrong_output(trial)
    if problem:
        raise Violation(problem, advice)


def backward(trial: CaseTrial) -> None:
    """Hold gradients of inputs to those of one process."""
    problem, advice = wrong_input_gradient(trial)
    if problem:
        raise Violation(problem, advice)


def forward_and_backward(trial: CaseTrial) -> None:
    """Hold outputs and gradients of inputs to those of one process."""
    forward(trial)
    backward(trial)


def results_are_waited_for(trial: CaseTrial) -> None:
    """Hold outputs and gradients of inputs to being finite where results of collectives are NaN until a wait."""
    kinds = {"output": "the output", "input": "the gradient of the input"}
    for step in range(trial.case.steps):
        for kind, words in kinds.items():
            for rank, answer in enumerate(trial.answers):
                if not bool(answer[f"{kind}/{step}"].isfinite().all()):
                    raise Violation(
                        f"On rank {rank}, {words} is NaN or infinite: statistics were read before anybody waited for "
                        f"the collective that gives them.{never_awaited(trial.unawaited(rank))}",
                        WAIT,
                    )


def gradients_of_weight_and_bias(trial: CaseTrial) -> None:
    """Hold the gradients of weight and bias, summed over the ranks, to those of one process."""
    expected = whole(trial).affine
    for name, wanted in expected.items():
        parts = [answer.get(f"affine/{trial.case.prefix}{name}", torch.zeros_like(wanted)) for answer in trial.answers]
        wrong = first_mismatch({name: torch.stack(parts).sum(0)}, {name: wanted})
        if wrong:
            again = first_mismatch({name: torch.stack(parts).mean(0)}, {name: wanted}) is None
            raise Violation(
                f"The gradient of `{name}`, summed over the ranks, is not that of one process: it {wrong.words}.",
                "Every rank has the sum over all: leave the exchange to the data-parallel wrapper." if again else "",
            )


def running_statistics(trial: CaseTrial) -> None:
    """Hold running mean and variance to those of one process, and to holding no autograd graph."""
    problem, advice = wrong_statistics(trial)
    if problem:
        raise Violation(problem, advice)
    for rank, answer in enumerate(trial.answers):
        for name, holds_graph in under(answer, "graph/").items():
            if holds_graph:
                raise Violation(
                    f"On rank {rank}, `{name}` requires a gradient after training: it holds on to the autograd graphs "
                    "of all batches so far, and memory grows with every step.",
                    "Update running statistics from detached means and variances, under `torch.no_grad()`.",
                )


def arguments_stay(trial: CaseTrial) -> None:
    """Hold inputs and the output's gradient to what they were."""
    for rank, (given, answer) in enumerate(zip(trial.given, trial.answers, strict=True)):
        for step in range(trial.case.steps):
            _hold_in_place(rank, "its input", answer[f"x/{step}"], given[f"x/{step}"])
            _hold_in_place(rank, "the output's gradient", answer[f"gradient/{step}"], given[f"gradient/{step}"])
        _hold_in_place(rank, "its input in evaluation mode", answer["x/evaluation"], given["x/0"])


def _hold_in_place(rank: int, what: str, seen: torch.Tensor, given: torch.Tensor) -> None:
    wrong = first_mismatch({"": seen}, {"": given})
    if wrong:
        raise Violation(
            f"On rank {rank}, the norm changed {what} in place: it {wrong.words}.",
            "Compute on new tensors: `x - mean`, not `x.sub_(mean)`; in backward likewise.",
        )


def evaluation_by_running_statistics(trial: CaseTrial) -> None:
    """Hold the output in evaluation mode to batch norm with the running statistics."""
    state = whole(trial).state
    for rank, (given, answer) in enumerate(zip(trial.given, trial.answers, strict=True)):
        mean, variance = state["running_mean"], state["running_var"]
        wanted = batch_norm(given["x/0"], mean, variance, state["weight"], state["bias"], eps=trial.case.eps)
        given_back = {"output": answer["evaluation"]} if "evaluation" in answer else {}
        wrong = first_mismatch(given_back, {"output": wanted})
        if wrong:
            raise Violation(
                f"On rank {rank} in evaluation mode, the output is not that of batch norm with the running statistics: "
                f"it {wrong.words}."
            )


def no_collective_in_evaluation(trial: CaseTrial) -> None:
    """Hold a forward in evaluation mode to launching no collective."""
    for rank, answer in enumerate(trial.answers):
        seen = int(answer["collectives"])
        if seen:
            raise Violation(
                f"On rank {rank}, a forward in evaluation mode launched {seen} collectives; expected none.",
                "" if trial.case.tracked else "Without running statistics, evaluation uses those of the rank's batch.",
            )
