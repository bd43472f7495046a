"""Known mistakes that one gradient alone does not show: they show in all gradients of a rank, or in other facts."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.checks.trial import Trial
from conformance.checks.words import TENSOR_HOOK, listed
from conformance.oracle.tolerance import equal, scale_of
from conformance.oracle.training import shard_gradients
from conformance.workload.numbers import Tensors, wide

_ROUND = 2  # digits of a norm that somebody has chosen
_ALIKE = 1e-5  # how near norms are that `clip_grad_norm_` made alike
_WHOLE = 1 - 1e-6  # a factor below it is no rounding


class TrainingFact(NamedTuple):
    """A mistake that explains wrong gradients of a step.

    Attributes:
        name: what a report calls it.
        seen: returns what shows it, in words; empty if it does not show. It gets the first step with a wrong gradient.
        advice: what to do about it.
    """

    name: str
    seen: Callable[[Trial, int], str]
    advice: str


def explain_by_facts(trial: Trial, step: int) -> str:
    """Return the mistake that explains the wrong gradients of a step, in words; empty if none does."""
    for mistake in TRAINING_FACTS:
        if seen := mistake.seen(trial, step):
            return f"Looks like *{mistake.name}*: {seen}. {mistake.advice}"
    return ""


def _parameters_reduced(trial: Trial, step: int) -> str:
    """Say which parameters are the sum over the ranks when backward is over."""
    ranks, starts = len(trial.observations), trial.expected.starts[step]
    limits = trial.expected.parameter_limits[step]
    summed = {
        name
        for seen in trial.observations
        for name, value in seen.written(step).items()
        if equal(value, ranks * wide(starts[name]), ranks * limits[name])
    }
    every = "every parameter" if summed == set(trial.expected.gradients[step]) else listed(sorted(summed))
    return f"after backward, {every} itself is the sum over the ranks, before any step" if summed else ""


def _hooked_too_early(trial: Trial, step: int) -> str:
    """Say which parameters have a hook on the tensor, and what `.grad` is if a reduction does not reach it."""
    hooked = {name for seen in trial.observations for name in seen.tensor_hooks}
    own = shard_gradients(trial.scenario, trial.inputs, trial.expected, step)
    kept = {
        name
        for rank, seen in enumerate(trial.observations)
        for name, value in seen.gradients(step).items()
        if name in hooked and name in own[rank]
        if any(
            equal(value, one, trial.expected.gradient_limits[step][name])
            for one in (own[rank][name], own[rank][name] / len(own), torch.zeros_like(own[rank][name]))
        )
    }
    return f"a hook of {listed(sorted(kept))} ran, and the result of its collective is not in `.grad`" if kept else ""


def _clipped(trial: Trial, step: int) -> str:
    """Say to which norm the gradients of a rank were shortened, each rank's own or the average."""
    own, ranks = shard_gradients(trial.scenario, trial.inputs, trial.expected, step), len(trial.observations)
    names = list(trial.expected.gradients[step])
    if any(set(names) - set(one) for one in (*own, *(seen.gradients(step) for seen in trial.observations))):
        return ""
    shards = torch.stack([_flat(one, names) for one in own])
    limit = max(trial.expected.gradient_limits[step].values())
    for seen in trial.observations:
        value = _flat(seen.gradients(step), names)
        solvable = shards.is_floating_point() and len(value) > ranks and bool(value.isfinite().all())
        norms = _norms_clipped(shards, value, limit) if solvable else ()
        if norms and max(norms) - min(norms) < _ALIKE * max(norms) and abs(norms[0] - round(norms[0], _ROUND)) < _ALIKE:
            return f"the gradients of a rank are shortened, all by one factor, to a norm of {round(norms[0], _ROUND):g}"
    return ""


def _norms_clipped(shards: torch.Tensor, value: torch.Tensor, limit: float) -> tuple[float, ...]:
    """Return the norm of each rank's part in an average that is right but for a factor below 1 of each rank's part.

    Args:
        shards: each rank's own gradients, float64[ranks, elements].
        value: the average that a rank has, float64[elements].
        limit: what rounding explains.

    Returns:
        The norms of the parts that are shortened; if all are by one factor, of the average.
    """
    factors = len(shards) * torch.linalg.lstsq(shards.T, value.unsqueeze(1)).solution[:, 0]
    if not equal(factors @ shards / len(shards), value, limit + 1e-9 * scale_of([value])):
        return ()
    if not bool(((factors > 0) & (factors < 1 + _ALIKE)).all()) or bool((factors > _WHOLE).all()):
        return ()
    divided = min(abs(float(factors[0]) - known) for known in (1 / 2, 1 / len(shards)))
    if float(factors.max() - factors.min()) < 1 - _WHOLE:
        if divided < _ALIKE:  # other mistakes give these
            return ()
        return (float(value.norm()),)
    return tuple((factors * shards.norm(dim=1))[factors < _WHOLE].tolist())


def _flat(gradients: Tensors, names: list[str]) -> torch.Tensor:
    return torch.cat([wide(gradients[name]).reshape(-1) for name in names])


# fmt: off
TRAINING_FACTS = (
    TrainingFact("parameters reduced, not their gradients", _parameters_reduced,
        "A hook of `register_post_accumulate_grad_hook` is given the parameter: reduce `parameter.grad`."),
    TrainingFact("a hook before the gradient is stored", _hooked_too_early, TENSOR_HOOK),
    TrainingFact("clipped by the wrapper", _clipped,
        "Leave clipping to the training loop, which clips the average, after `on_after_backward`: ranks have other "
        "norms, so that what each of them clips by its own does not average to what one process has."),
)
# fmt: on
