"""Assertions about synchronised batch norm: on N ranks it is what batch norm is on the concatenated batch.

Those about what converting a model's batch norms keeps stand at the end: their state and options, and their use.
"""

import torch
from torch.nn.functional import batch_norm

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch, mismatches
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, never_awaited
from conformance.components.sync_batchnorm.whole_batch import named_mistake, named_mistake_in_variance, whole
from conformance.workload.numbers import under

_LEARNT = {"weight", "bias"}
_BACKWARD = (
    "All-reduce, in backward too, the sums of the output's gradients and of their products with the inputs. Divide "
    "their sums by the number of samples of all ranks."
)
_NO_BACKWARD = (
    "No gradient reached the input. Compute the output from the input itself, without `torch.no_grad()` and "
    "`detach()`. A backward of your own returns the input's gradient wherever `ctx.needs_input_grad` asks for it, "
    "also if weight and bias are frozen."
)


def normalises(trial: CaseTrial) -> None:
    """Hold outputs, gradients of inputs and running statistics to those of one process."""
    forward(trial)
    if not trial.case.without_gradients:
        backward(trial)
    statistics(trial)


def forward(trial: CaseTrial) -> None:
    """Hold outputs to those of one process."""
    for step, outputs in enumerate(whole(trial).outputs):
        for rank, wanted in enumerate(outputs):
            wrong = first_mismatch({"output": trial.answers[rank][f"output/{step}"]}, {"output": wanted})
            if wrong:
                raise Violation(
                    f"On rank {rank}, the output is not that of one process on all samples: it {wrong.words}.",
                    named_mistake(trial, rank, step, wanted),
                )


def backward(trial: CaseTrial) -> None:
    """Hold gradients of inputs to those of one process."""
    for step, inputs in enumerate(whole(trial).inputs):
        for rank, wanted in enumerate(inputs):
            seen = trial.answers[rank][f"input/{step}"]
            wrong = first_mismatch({"x": seen}, {"x": wanted})
            if wrong:
                raise Violation(
                    f"On rank {rank}, the gradient of the input is not that of one process: it {wrong.words}.",
                    _BACKWARD if seen.any() else _NO_BACKWARD,
                )


def statistics(trial: CaseTrial) -> None:
    """Hold the running statistics at the end to those of one process."""
    expected = {name: value for name, value in whole(trial).state.items() if name not in _LEARNT}
    steps = "1 step" if trial.case.steps == 1 else f"{trial.case.steps} steps"
    ends = trial.under(f"end/{trial.case.prefix}")
    for rank, wrong in mismatches(ends, expected):
        variance = ends[rank].get("running_var")
        raise Violation(
            f"On rank {rank} after {steps}, `{wrong.name}` is not that of one process: it {wrong.words}.",
            "" if variance is None else named_mistake_in_variance(trial, rank, variance),
        )


def forward_and_backward(trial: CaseTrial) -> None:
    """Hold outputs and gradients of inputs to those of one process."""
    forward(trial)
    backward(trial)


def results_are_waited_for(trial: CaseTrial) -> None:
    """Hold outputs and gradients of inputs to being finite where results of collectives are NaN until a wait."""
    for kind, words in (("output", "the output"), ("input", "the gradient of the input")):
        for rank, steps in enumerate(trial.under(f"{kind}/")):
            if not all(bool(value.isfinite().all()) for value in steps.values()):
                raise Violation(
                    f"On rank {rank}, {words} is NaN or infinite: statistics were read before anybody waited for the "
                    f"collective that gives them.{never_awaited(trial.unawaited(rank))}",
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
    statistics(trial)
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
    parts = (state["running_mean"], state["running_var"], state["weight"], state["bias"])
    for rank, (given, answer) in enumerate(zip(trial.given, trial.answers, strict=True)):
        wrong = first_mismatch(answer, {"evaluation": batch_norm(given["x/0"], *parts, eps=trial.case.eps)})
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


def conversion_keeps_state(trial: CaseTrial) -> None:
    """Hold the state after conversion to that before."""
    start = {f"{trial.case.prefix}{name}": trial.given[0][name] for name in trial.case.state}
    converted = trial.under("converted/")
    for rank, kept in enumerate(converted):
        if set(kept) != set(start):
            raise Violation(
                f"On rank {rank}, the converted model's `state_dict` has {', '.join(sorted(kept)) or 'nothing'}; "
                f"expected {', '.join(sorted(start)) or 'nothing'}."
            )
    for rank, wrong in mismatches(converted, start):
        raise Violation(f"On rank {rank}, conversion changed `{wrong.name}`: it {wrong.words}.")


def conversion_keeps_models(trial: CaseTrial) -> None:
    """Hold norms of other kinds, a norm at two places, and a model that is a norm itself to working as before."""
    for rank in trial.ranks_where("other_norms_kept", holds=False):
        raise Violation(
            f"On rank {rank}, conversion has replaced a norm that is no batch norm.",
            "Convert instances of `nn.BatchNorm1d`, `nn.BatchNorm2d` and `nn.BatchNorm3d` alone: their base class "
            "`_NormBase` is that of `nn.InstanceNorm2d` too.",
        )
    for rank in trial.ranks_where("still_shared", holds=False) if trial.case.shared else ():
        raise Violation(
            f"On rank {rank}, the model has one norm at two places before conversion, `1.0` and `0.again`, and two "
            "different ones afterwards.",
            "`named_modules()` names a module once, at its first place: replace it wherever `named_children()` of any "
            "module has it, by one and the same norm.",
        )
    if trial.case.bare:
        conversion_keeps_options(trial)


def conversion_keeps_options(trial: CaseTrial) -> None:
    """Hold state, and training and evaluation with it, to those of a norm with the same options."""
    conversion_keeps_state(trial)
    normalises(trial)
    if not trial.case.tracked:
        no_collective_in_evaluation(trial)


def frozen_parameters_stay(trial: CaseTrial) -> None:
    """Hold a frozen weight and bias to requiring no gradients, and training to one process."""
    for rank, answer in enumerate(trial.answers):
        for name, required in under(answer, "requires_grad/").items():
            if required:
                raise Violation(
                    f"On rank {rank}, `{name}` requires a gradient after conversion; before, it was frozen.",
                    "Keep the parameters themselves, or give the new ones their `requires_grad`.",
                )
    normalises(trial)
