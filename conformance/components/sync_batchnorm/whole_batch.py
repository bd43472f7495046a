"""What batch norm gives in one process on the samples of all ranks, and which mistake gives what was seen instead."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import batch_norm

from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.workload.numbers import Tensors, under

_USUAL_EPS, _USUAL_MOMENTUM = 1e-5, 0.1
_SINGLE = 1e-6  # of the largest number; what computing in float32 takes off
_BACKWARD = (
    "All-reduce, in backward too, the sums of the output's gradients and of their products with the inputs. Divide "
    "their sums by the number of samples of all ranks."
)
_NO_BACKWARD = (
    "No gradient reached the input. Compute the output from the input itself, without `torch.no_grad()` and "
    "`detach()`. A backward of your own returns the input's gradient wherever `ctx.needs_input_grad` asks for it, "
    "also if weight and bias are frozen."
)


@dataclass(frozen=True)
class Whole:
    """What one process gives: by step and rank, outputs and gradients of inputs; gradients and state at the end."""

    outputs: list[list[torch.Tensor]]
    inputs: list[list[torch.Tensor]]
    affine: Tensors
    state: Tensors


def whole(trial: CaseTrial) -> Whole:
    """Return what one process gives."""
    case, start = trial.case, {name: _wide(value) for name, value in trial.given[0].items()}
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


def wrong_output(trial: CaseTrial) -> tuple[str, str]:
    """Return what is wrong with an output, and which mistake fits."""
    for step, outputs in enumerate(whole(trial).outputs):
        for rank, wanted in enumerate(outputs):
            seen = trial.answers[rank][f"output/{step}"]
            wrong = first_mismatch({"output": seen}, {"output": wanted})
            if wrong:
                named = (words for words, make in _MISTAKES.items() if _alike(seen, make(trial, rank, step)))
                fits = next(named, "")
                problem = f"On rank {rank}, the output is not that of one process on all samples: it {wrong.words}."
                if first_mismatch({"": seen}, {"": wanted}, {"": _SINGLE * float(wanted.abs().max())}) is None:
                    return problem, "Looks like *sums in float32*: keep them in the dtype of the input, or in float64."
                return problem, f"Looks like *{fits}*." if fits else ""
    return "", ""


def wrong_input_gradient(trial: CaseTrial) -> tuple[str, str]:
    """Return what is wrong with the gradient of an input, and what to do about it."""
    for step, inputs in enumerate(whole(trial).inputs):
        for rank, wanted in enumerate(inputs):
            seen = trial.answers[rank][f"input/{step}"]
            wrong = first_mismatch({"x": seen}, {"x": wanted})
            if wrong:
                problem = f"On rank {rank}, the gradient of the input is not that of one process: it {wrong.words}."
                return problem, _BACKWARD if seen.any() else _NO_BACKWARD
    return "", ""


def wrong_statistics(trial: CaseTrial) -> tuple[str, str]:
    """Return what is wrong with the running statistics at the end, and which mistake fits."""
    expected = whole(trial).state
    for rank, answer in enumerate(trial.answers):
        seen = {name.removeprefix(trial.case.prefix): value for name, value in under(answer, "end/").items()}
        wrong = first_mismatch(seen, {name: value for name, value in expected.items() if name not in _LEARNT})
        if wrong:
            steps = "1 step" if trial.case.steps == 1 else f"{trial.case.steps} steps"
            return (
                f"On rank {rank} after {steps}, `{wrong.name}` is not that of one process: it {wrong.words}.",
                _named_statistics(trial, rank, seen),
            )
    return "", ""


def _local(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    mean, variance = _moments(trial.given[rank][f"x/{step}"])
    return _normalised(trial, rank, step, mean, variance)


def _unweighted(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    """Average the ranks' means and means of squares, whatever their numbers of samples."""
    moments = [_moments(given[f"x/{step}"]) for given in trial.given]
    mean = torch.stack([m for m, _ in moments]).mean(0)
    squares = torch.stack([v + m * m for m, v in moments]).mean(0)
    return _normalised(trial, rank, step, mean, squares - mean * mean)


def _by_samples(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    """Weight the ranks' means and means of squares by their samples, whatever the length of these."""
    xs = [given[f"x/{step}"] for given in trial.given]
    moments, samples = [_moments(x) for x in xs], sum(map(len, xs))
    mean = torch.stack([len(x) * m for x, (m, _) in zip(xs, moments, strict=True)]).sum(0) / samples
    squares = torch.stack([len(x) * (v + m * m) for x, (m, v) in zip(xs, moments, strict=True)]).sum(0) / samples
    return _normalised(trial, rank, step, mean, squares - mean * mean)


def _within(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    """Average the ranks' variances, so that what lies between their means is lost."""
    moments = [_moments(given[f"x/{step}"]) for given in trial.given]
    return _normalised(trial, rank, step, *(torch.stack(part).mean(0) for part in zip(*moments, strict=True)))


def _usual_eps(trial: CaseTrial, rank: int, step: int) -> torch.Tensor:
    return _normalised(trial, rank, step, *_moments(_together(trial, f"x/{step}")), eps=_USUAL_EPS)


_LEARNT = ("weight", "bias")
_MISTAKES: dict[str, Callable[[CaseTrial, int, int], torch.Tensor]] = {
    "each rank's own statistics": _local,
    "ranks weighted alike, whatever their numbers of samples": _unweighted,
    "ranks weighted by their numbers of samples, whatever the length of these": _by_samples,
    "the ranks' variances averaged, without what lies between their means": _within,
    f"an eps of {_USUAL_EPS:g}, not the norm's own": _usual_eps,
}


def _named_statistics(trial: CaseTrial, rank: int, seen: Tensors) -> str:
    """Return which mistake gives the running variance that was seen."""
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
            variance = (1 - share) * variance + share * (n / (n - 1) if n else 1.0) * _moments(x)[1]
        if _alike(seen["running_var"], variance):
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


def _normalised(
    trial: CaseTrial, rank: int, step: int, mean: torch.Tensor, variance: torch.Tensor, *, eps: float | None = None
) -> torch.Tensor:
    given, eps = trial.given[rank], trial.case.eps if eps is None else eps
    return batch_norm(given[f"x/{step}"], mean, variance, given.get("weight"), given.get("bias"), eps=eps)


def _together(trial: CaseTrial, name: str) -> torch.Tensor:
    """Return the values of all ranks as rows of channels, since ranks' inputs may differ in length."""
    return torch.cat([_wide(given[name]).transpose(0, 1).flatten(1).T for given in trial.given])


def _of_ranks(trial: CaseTrial, rows: torch.Tensor) -> list[torch.Tensor]:
    """Return what `_together` has put together, by rank, each in the shape of its input."""
    shapes = [given["x/0"].shape for given in trial.given]
    parts = torch.split(rows, [shape.numel() // shape[1] for shape in shapes])
    return [
        part.T.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1).contiguous()
        for part, shape in zip(parts, shapes, strict=True)
    ]


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _alike(seen: torch.Tensor, wanted: torch.Tensor) -> bool:
    return first_mismatch({"": seen}, {"": wanted}) is None
