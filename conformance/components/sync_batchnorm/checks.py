"""Checks of synchronised batch norm: on N ranks it is what batch norm is on the concatenated batch."""

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


def statistics_are_waited_for(trial: CaseTrial) -> None:
    """What a collective gives is used only after somebody has waited for it, in forward and in backward.

    Here results arrive with the wait, and not before; who reads them too early finds NaN, every time.
    """
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


def forward_over_all_ranks(trial: CaseTrial) -> None:
    """In training, mean and variance are those of all ranks' samples together."""
    problem, advice = wrong_output(trial)
    if problem:
        raise Violation(problem, advice)


def forward_of_uneven_batches(trial: CaseTrial) -> None:
    """Ranks may have different numbers of samples: sums are reduced, and their counts with them."""
    problem, advice = wrong_output(trial)
    if problem:
        raise Violation(problem, advice or "All-reduce sums, sums of squares and counts; divide then.")


def backward_over_all_ranks(trial: CaseTrial) -> None:
    """The gradient of the input flows through the statistics of all ranks."""
    problem = wrong_input_gradient(trial)
    if problem:
        raise Violation(problem, _BACKWARD)


def backward_of_uneven_batches(trial: CaseTrial) -> None:
    """The same where ranks have different numbers of samples."""
    problem = wrong_input_gradient(trial)
    if problem:
        raise Violation(problem, _BACKWARD + " Divide their sums by the number of samples of all ranks.")


def gradients_of_weight_and_bias(trial: CaseTrial) -> None:
    """Gradients of weight and bias are each rank's own, for the data-parallel wrapper to average; together all."""
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


def gradients_of_the_first_layer(trial: CaseTrial) -> None:
    """Weight and bias get gradients also where the norm comes first, and its inputs need none."""
    gradients_of_weight_and_bias(trial)


def statistics_without_gradients(trial: CaseTrial) -> None:
    """In training mode, statistics are those of all ranks also where gradients are turned off."""
    problem = wrong_output(trial)[0] or wrong_statistics(trial)[0]
    if problem:
        raise Violation(
            f"In training mode, under `torch.no_grad()`: {problem}",
            "Whether statistics are exchanged is decided by `self.training`, not by whether gradients are wanted: "
            "activation checkpointing, for one, runs its first forward without.",
        )


def inputs_of_other_lengths(trial: CaseTrial) -> None:
    """Each value counts the same where ranks' inputs differ in length or in size."""
    problem, advice = wrong_output(trial)
    problem = problem or wrong_input_gradient(trial)
    problem = problem or wrong_statistics(trial)[0]
    if problem:
        raise Violation(
            f"Each rank's inputs are longer than those of the rank before. {problem}",
            advice or "Count values, not samples: each channel's are `x.numel() / x.shape[1]`.",
        )


def running_statistics(trial: CaseTrial) -> None:
    """Running mean and variance follow the statistics of all ranks; the variance is divided by N - 1, N of all."""
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


def cumulative_average(trial: CaseTrial) -> None:
    """With `momentum=None`, running mean and variance are averages in which all batches so far count alike."""
    problem, advice = wrong_statistics(trial)
    if problem:
        raise Violation(problem, advice or "The share of a batch is then `1 / num_batches_tracked`, this one counted.")


def changes_nothing_in_place(trial: CaseTrial) -> None:
    """Inputs and the output's gradient stay as they are: others use them too, such as a residual connection."""
    for rank, (given, answer) in enumerate(zip(trial.given, trial.answers, strict=True)):
        for step in range(trial.case.steps):
            _hold_in_place(rank, "its input", answer[f"x/{step}"], given[f"x/{step}"])
            _hold_in_place(rank, "the output's gradient", answer[f"gradient/{step}"], given[f"gradient/{step}"])
        _hold_in_place(rank, "its input in evaluation mode", answer["x/evaluation"], given["x/0"])


def evaluation_by_running_statistics(trial: CaseTrial) -> None:
    """In evaluation mode, the running statistics are used, not those of the batch."""
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
    """In evaluation mode nothing is exchanged, so that one rank may evaluate alone."""
    for rank, answer in enumerate(trial.answers):
        seen = int(answer["collectives"])
        if seen:
            raise Violation(
                f"On rank {rank}, a forward in evaluation mode launched {seen} collectives; expected none.",
                "" if trial.case.tracked else "Without running statistics, evaluation uses those of the rank's batch.",
            )


def no_collective_without_running_statistics(trial: CaseTrial) -> None:
    """Nor is anything exchanged in evaluation mode where there are no running statistics."""
    no_collective_in_evaluation(trial)


def rank_without_samples(trial: CaseTrial) -> None:
    """A rank whose batch is empty takes part, and changes nothing for the others."""
    problem, _ = wrong_output(trial)
    problem = problem or wrong_input_gradient(trial)
    if problem:
        raise Violation(problem)
    problem, _ = wrong_statistics(trial)
    if problem:
        raise Violation(
            problem,
            "Update running statistics on a rank without samples too, from those of all ranks: what it evaluates, or "
            "saves, is the same as on the others.",
        )


def one_sample_on_each_rank(trial: CaseTrial) -> None:
    """One sample on each rank is enough: mean and variance are those of all ranks' samples."""
    problem, _ = wrong_output(trial)
    problem = problem or wrong_input_gradient(trial)
    problem = problem or wrong_statistics(trial)[0]
    if problem:
        raise Violation(
            f"With one sample on each rank: {problem}",
            "Take sums and numbers of samples from all ranks before dividing: a rank's own variance, without bias, is "
            "0 / 0 here.",
        )


def forwards_before_backwards(trial: CaseTrial) -> None:
    """Two forwards may come before the backward of both, as where two inputs are compared."""
    problem = wrong_input_gradient(trial)
    if problem:
        raise Violation(
            f"Two forwards came before the backward of the first. {problem}",
            "Keep what backward needs in autograd's context (`ctx.save_for_backward`), not in the module: there, the "
            "next forward overwrites it.",
        )


def gradients_in_evaluation(trial: CaseTrial) -> None:
    """In evaluation mode gradients reach what comes before, as where a model is trained further with norms at rest."""
    problem = wrong_input_gradient(trial)
    if problem:
        raise Violation(
            f"In evaluation mode, {problem[0].lower()}{problem[1:]}",
            "The forward of evaluation mode is differentiated too: no `torch.no_grad()` and no `detach()` there.",
        )


def _hold_in_place(rank: int, what: str, seen: torch.Tensor, given: torch.Tensor) -> None:
    wrong = first_mismatch({"": seen}, {"": given})
    if wrong:
        raise Violation(
            f"On rank {rank}, the norm changed {what} in place: it {wrong.words}.",
            "Compute on new tensors: `x - mean`, not `x.sub_(mean)`; in backward likewise.",
        )


_BACKWARD = "All-reduce, in backward too, the sums of the output's gradients and of their products with the inputs."
