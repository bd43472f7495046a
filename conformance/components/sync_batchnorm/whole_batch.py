"""What batch norm gives in one process on the samples of all ranks, and which mistake gives what was seen instead."""

from dataclasses import dataclass

import torch
from torch.nn.functional import batch_norm

from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.workload.numbers import Tensors

_USUAL_EPS, _USUAL_MOMENTUM = 1e-5, 0.1
_SINGLE = 1e-6  # of the largest number; what computing in float32 takes off


@dataclass(frozen=True)
class Whole:
    """What one process gives: by step and rank, outputs and gradients of inputs; gradients and state at the end."""

    outputs: list[list[torch.Tensor]]
    inputs: list[list[torch.Tensor]]
    affine: Tensors
    state: Tensors


def whole(trial: CaseTrial) -> Whole:
    """Return what one process gives."""
    case, start = trial.case, {name: value.double() for name, value in trial.given[0].items()}
    state = {name: start[name].clone() for name in case.state}
    leaves: Tensors = {name: state[name] for name in ("weight", "bias") if name in state}
    for leaf in leaves.values():
        leaf.requires_grad_(not case.frozen)
    outputs, inputs = [], []
    for step in range(case.steps):
        x = _together(trial, f"x/{step}").requires_grad_()
        parts = (state.get("running_mean"), state.get("running_var"), leaves.get("weight"), leaves.get("bias"))
        output = batch_norm(x, *parts, not case.evaluating, _share(trial, step), case.eps)
        torch.autograd.backward((output * _together(trial, f"gradient/{step}")).sum())
        outputs.append(_of_ranks(trial, output.detach()))
        inputs.append(_of_ranks(trial, torch.zeros_like(x) if x.grad is None else x.grad))
        if case.tracked and not case.evaluating:
            state["num_batches_tracked"] += 1
    affine: Tensors = {name: p.grad for name, p in leaves.items() if p.grad is not None}
    return Whole(outputs, inputs, affine, {name: value.detach() for name, value in state.items()})


def named_mistake(trial: CaseTrial, rank: int, step: int, wanted: torch.Tensor) -> str:
    """Return which mistake gives a rank's output that is not the wanted one, in words; nothing if none does."""
    seen, given = trial.answers[rank][f"output/{step}"], trial.given[rank]
    if first_mismatch({"": seen}, {"": wanted}, {"": _SINGLE * float(wanted.abs().max())}) is None:
        return "Looks like *sums in float32*: keep them in the dtype of the input, or in float64."
    for words, (mean, variance, eps) in _mistakes(trial, rank, step).items():
        if _alike(
            seen, batch_norm(given[f"x/{step}"], mean, variance, given.get("weight"), given.get("bias"), eps=eps)
        ):
            return f"Looks like *{words}*."
    return ""


def _mistakes(trial: CaseTrial, rank: int, step: int) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    """Return mean, variance and eps of known mistakes."""
    xs, eps = [given[f"x/{step}"] for given in trial.given], trial.case.eps
    means, variances = map(torch.stack, zip(*map(_moments, xs), strict=True))

    def weighted(weights: list[int]) -> tuple[torch.Tensor, torch.Tensor, float]:
        shares = torch.tensor(weights, dtype=means.dtype)[:, None] / sum(weights)
        mean, squares = (shares * means).sum(0), (shares * (variances + means**2)).sum(0)
        return mean, squares - mean**2, eps

    return {
        "each rank's own statistics": (means[rank], variances[rank], eps),
        "ranks weighted alike, whatever their numbers of samples": weighted([1 for _ in xs]),
        "ranks weighted by their numbers of samples, whatever the length of these": weighted([len(x) for x in xs]),
        "the ranks' variances averaged, without what lies between their means": (means.mean(0), variances.mean(0), eps),
        f"an eps of {_USUAL_EPS:g}, not the norm's own": (*_moments(_together(trial, f"x/{step}")), _USUAL_EPS),
    }


def named_mistake_in_variance(trial: CaseTrial, rank: int, seen: torch.Tensor) -> str:
    """Return which mistake gives a running variance that was seen, in words; nothing if none does."""
    momentum, own = trial.case.momentum, trial.given[rank]["x/0"]
    everything = len(_together(trial, "x/0"))
    mistakes = {
        "the variance divided by N, not by N - 1": (None, momentum),
        "N - 1 of the rank's own samples": (own.numel() // own.shape[1], momentum),
        f"a momentum of {_USUAL_MOMENTUM:g}, not the norm's own": (everything, _USUAL_MOMENTUM),
    }
    for words, (n, of_mistake) in mistakes.items():
        variance = trial.given[rank]["running_var"]
        for step in range(trial.case.steps):
            x, share = _together(trial, f"x/{step}"), of_mistake or _share(trial, step)
            variance = (1 - share) * variance + share * (n / max(n - 1, 1) if n else 1.0) * _moments(x)[1]
        if _alike(seen, variance):
            return f"Looks like *{words}*."
    return ""


def _share(trial: CaseTrial, step: int) -> float:
    """Return how much of a running statistic a batch makes up; without a momentum, as much as each before it."""
    momentum: float | None = trial.case.momentum
    return 1 / (int(trial.given[0]["num_batches_tracked"]) + step + 1) if momentum is None else momentum


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of each channel."""
    by_channel = x.transpose(0, 1).flatten(1)
    return by_channel.mean(1), by_channel.var(1, correction=0)


def _together(trial: CaseTrial, name: str) -> torch.Tensor:
    """Return the values of all ranks as rows of channels, since ranks' inputs may differ in length."""
    return torch.cat([given[name].double().transpose(0, 1).flatten(1).T for given in trial.given])


def _of_ranks(trial: CaseTrial, rows: torch.Tensor) -> list[torch.Tensor]:
    """Return what `_together` has put together, by rank, each in the shape of its input."""
    shapes = [given["x/0"].shape for given in trial.given]
    parts = torch.split(rows, [shape.numel() // shape[1] for shape in shapes])
    return [
        part.T.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1).contiguous()
        for part, shape in zip(parts, shapes, strict=True)
    ]


def _alike(seen: torch.Tensor, wanted: torch.Tensor) -> bool:
    return first_mismatch({"": seen}, {"": wanted}) is None
