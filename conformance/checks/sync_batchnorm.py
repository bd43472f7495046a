"""Checks of synchronised batch norm: on N ranks it is what batch norm is on the concatenated batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import batch_norm

from conformance.checks.check import WAIT, CaseTrial, Violation, first_mismatch, never_awaited
from conformance.data import Tensors

_EPS, _MOMENTUM = 1e-5, 0.1
_PREFIX = "1.0."  # the norm's place in the model
_STATE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def conversion_keeps_state(trial: CaseTrial) -> None:
    """Conversion replaces batch norms at any depth, and keeps names and values of parameters and buffers."""
    start = {f"{_PREFIX}{name}": trial.given[0][name] for name in _STATE}
    for rank, answer in enumerate(trial.answers):
        kept = _under(answer, "converted/")
        if set(kept) != set(start):
            raise Violation(
                f"On rank {rank}, the converted model's `state_dict` has {', '.join(sorted(kept)) or 'nothing'}; "
                f"expected {', '.join(sorted(start))}."
            )
        wrong = first_mismatch(kept, start)
        if wrong:
            raise Violation(f"On rank {rank}, conversion changed `{wrong.name}`: it {wrong.words}.")


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
    problem, advice = _wrong_output(trial)
    if problem:
        raise Violation(problem, advice)


def forward_of_uneven_batches(trial: CaseTrial) -> None:
    """Ranks may have different numbers of samples: sums are reduced, and their counts with them."""
    problem, advice = _wrong_output(trial)
    if problem:
        raise Violation(problem, advice or "All-reduce sums, sums of squares and counts; divide then.")


def backward_over_all_ranks(trial: CaseTrial) -> None:
    """The gradient of the input flows through the statistics of all ranks."""
    problem = _wrong_input_gradient(trial)
    if problem:
        raise Violation(problem, _BACKWARD)


def backward_of_uneven_batches(trial: CaseTrial) -> None:
    """The same where ranks have different numbers of samples."""
    problem = _wrong_input_gradient(trial)
    if problem:
        raise Violation(problem, _BACKWARD + " Divide their sums by the number of samples of all ranks.")


def gradients_of_weight_and_bias(trial: CaseTrial) -> None:
    """Gradients of weight and bias are each rank's own, for the data-parallel wrapper to average; together all."""
    expected = _whole(trial).affine
    for name, wanted in expected.items():
        parts = [answer.get(f"affine/{_PREFIX}{name}", torch.zeros_like(wanted)) for answer in trial.answers]
        wrong = first_mismatch({name: torch.stack(parts).sum(0)}, {name: wanted})
        if wrong:
            again = first_mismatch({name: torch.stack(parts).mean(0)}, {name: wanted}) is None
            raise Violation(
                f"The gradient of `{name}`, summed over the ranks, is not that of one process: it {wrong.words}.",
                "Every rank has the sum over all: leave the exchange to the data-parallel wrapper." if again else "",
            )


def running_statistics(trial: CaseTrial) -> None:
    """Running mean and variance follow the statistics of all ranks; the variance is divided by N - 1, N of all."""
    expected = _whole(trial).state
    for rank, answer in enumerate(trial.answers):
        seen = {name.removeprefix(_PREFIX): value for name, value in _under(answer, "end/").items()}
        wrong = first_mismatch(seen, {name: expected[name] for name in _STATE[2:]})
        if wrong:
            raise Violation(
                f"On rank {rank} after {trial.case.steps} steps, `{wrong.name}` is not that of one process: it "
                f"{wrong.words}.",
                _named_state(trial, rank, seen),
            )


def evaluation_by_running_statistics(trial: CaseTrial) -> None:
    """In evaluation mode, the running statistics are used, not those of the batch."""
    state = _whole(trial).state
    for rank, (given, answer) in enumerate(zip(trial.given, trial.answers, strict=True)):
        mean, variance = state["running_mean"], state["running_var"]
        wanted = batch_norm(given["x/0"], mean, variance, state["weight"], state["bias"], eps=_EPS)
        wrong = first_mismatch({"output": answer["evaluation"]}, {"output": wanted})
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
            raise Violation(f"On rank {rank}, a forward in evaluation mode launched {seen} collectives; expected none.")


def rank_without_samples(trial: CaseTrial) -> None:
    """A rank whose batch is empty takes part, and changes nothing for the others."""
    problem, _ = _wrong_output(trial)
    problem = problem or _wrong_input_gradient(trial)
    if problem:
        raise Violation(problem)


def without_weight_and_statistics(trial: CaseTrial) -> None:
    """The options `affine=False` and `track_running_stats=False` are kept."""
    problem, _ = _wrong_output(trial)
    problem = problem or _wrong_input_gradient(trial)
    if problem:
        raise Violation(problem)


_BACKWARD = "All-reduce, in backward too, the sums of the output's gradients and of their products with the inputs."


@dataclass(frozen=True)
class _Whole:
    """What one process gives: outputs and gradients of the inputs of each step, gradients and state at the end."""

    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    affine: Tensors
    state: Tensors


def _whole(trial: CaseTrial) -> _Whole:
    start = trial.given[0]
    state = {name: start[name].clone() for name in _STATE if name in start}
    leaves: Tensors = {name: state[name].requires_grad_() for name in ("weight", "bias") if name in state}
    outputs, inputs = [], []
    for step in range(trial.case.steps):
        x = _together(trial, f"x/{step}").requires_grad_()
        mean, variance = state.get("running_mean"), state.get("running_var")
        output = batch_norm(x, mean, variance, leaves.get("weight"), leaves.get("bias"), training=True, eps=_EPS)
        torch.autograd.backward((output * _together(trial, f"gradient/{step}")).sum())
        outputs.append(output.detach())
        inputs.append(torch.zeros_like(x) if x.grad is None else x.grad)
        if "num_batches_tracked" in state:
            state["num_batches_tracked"] += 1
    affine: Tensors = {name: p.grad for name, p in leaves.items() if p.grad is not None}
    return _Whole(outputs, inputs, affine, {name: value.detach() for name, value in state.items()})


def _wrong_output(trial: CaseTrial) -> tuple[str, str]:
    """Return what is wrong with an output, and which mistake fits."""
    for step, whole in enumerate(_whole(trial).outputs):
        for rank, wanted in enumerate(torch.split(whole, trial.case.sizes)):
            seen = trial.answers[rank][f"output/{step}"]
            wrong = first_mismatch({"output": seen}, {"output": wanted})
            if wrong:
                named = (words for words, make in _MISTAKES.items() if _alike(seen, make(trial, rank, step)))
                fits = next(named, "")
                problem = f"On rank {rank}, the output is not that of one process on all samples: it {wrong.words}."
                return problem, f"Looks like *{fits}*." if fits else ""
    return "", ""


def _wrong_input_gradient(trial: CaseTrial) -> str:
    for step, whole in enumerate(_whole(trial).inputs):
        for rank, wanted in enumerate(torch.split(whole, trial.case.sizes)):
            wrong = first_mismatch({"x": trial.answers[rank][f"input/{step}"]}, {"x": wanted})
            if wrong:
                return f"On rank {rank}, the gradient of the input is not that of one process: it {wrong.words}."
    return ""


def _local(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    mean, variance = _moments(trial.given[rank][f"x/{step}"])
    return _normalised(trial, rank, step, mean, variance)


def _unweighted(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    """Average the ranks' means and means of squares, whatever their numbers of samples."""
    moments = [_moments(given[f"x/{step}"]) for given in trial.given]
    mean = torch.stack([m for m, _ in moments]).mean(0)
    squares = torch.stack([v + m * m for m, v in moments]).mean(0)
    return _normalised(trial, rank, step, mean, squares - mean * mean)


def _within(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    """Average the ranks' variances, so that what lies between their means is lost."""
    moments = [_moments(given[f"x/{step}"]) for given in trial.given]
    return _normalised(trial, rank, step, *(torch.stack(part).mean(0) for part in zip(*moments, strict=True)))


_MISTAKES: dict[str, Callable[[CaseTrial, int, int], torch.Tensor]] = {
    "each rank's own statistics": _local,
    "ranks weighted alike, whatever their numbers of samples": _unweighted,
    "the ranks' variances averaged, without what lies between their means": _within,
}


def _named_state(trial: CaseTrial, rank: int, seen: Tensors) -> str:
    """Return which mistake gives the running variance that was seen."""
    start, first = trial.given[rank], trial.case.sizes
    counts = {"the variance divided by N, not by N - 1": None, "N - 1 of the rank's own samples": first[rank]}
    for words, own in counts.items():
        variance = start["running_var"]
        for step in range(trial.case.steps):
            x = _together(trial, f"x/{step}")
            factor = 1.0 if own is None else own * (k := x[0, 0].numel()) / (own * k - 1)
            variance = (1 - _MOMENTUM) * variance + _MOMENTUM * factor * _moments(x)[1]
        if _alike(seen["running_var"], variance):
            return f"Looks like *{words}*."
    return ""


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of each channel."""
    by_channel = x.transpose(0, 1).flatten(1)
    return by_channel.mean(1), by_channel.var(1, correction=0)


def _normalised(trial: CaseTrial, rank: int, step: int, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    given = trial.given[rank]
    return batch_norm(given[f"x/{step}"], mean, variance, given.get("weight"), given.get("bias"), eps=_EPS)


def _together(trial: CaseTrial, name: str) -> torch.Tensor:
    return torch.cat([given[name] for given in trial.given])


def _alike(seen: torch.Tensor, wanted: torch.Tensor) -> bool:
    return first_mismatch({"": seen}, {"": wanted}) is None


def _under(answer: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in answer.items() if name.startswith(prefix)}
