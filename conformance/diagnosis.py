"""Names the mistake behind a failure: what known mistakes would have given, compared with what was seen.

Gradients are matched one by one at the first step that is wrong, where the parameters are still right; what they have
in common then says more (only biases, only the last bucket, ...). Parameters are matched with whole training runs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from conformance.checks.check import Trial, listed
from conformance.mistakes import GRADIENT_MISTAKES, TRAJECTORY_MISTAKES, GradientMistake, Shards
from conformance.oracle import shard_gradients, train
from conformance.tolerance import equal, scale_of

UNKNOWN = "No known mistake gives these numbers."
_MATRIX = 2


@dataclass(frozen=True)
class Wrong:
    """One wrong gradient, and the mistake that explains it, if any."""

    rank: int
    name: str
    mistake: str


def diagnose(trial: Trial, wider: Trial | None = None) -> str:
    """Return which known mistake fits a trial that failed, or say that none does.

    Args:
        trial: the smallest one that failed.
        wider: the same with a larger model, in which a mistake may show that it concerns some parameters only.
    """
    if wider is not None:
        step, wrong = _first_wrong(wider)
        if wrong and {one.name for one in wrong} < set(wider.expected.gradients[step]):
            layers = len(wider.scenario.model.layers)
            return f"With a model of {layers} layers more can be seen. {_explain(wider, wrong, step)}"
    return _initial_values(trial) or _gradients(trial) or _left_behind(trial) or _trajectories(trial) or UNKNOWN


def _initial_values(trial: Trial) -> str:
    """Explain parameters that are not rank 0's right after wrapping."""
    kept = {
        name
        for rank, seen in enumerate(trial.observations)
        for name, wanted in trial.inputs[0].weights.items()
        if not torch.equal(seen.wrapped[name], wanted)
        and torch.equal(seen.wrapped[name], trial.inputs[rank].weights[name])
    }
    if not kept:
        return ""
    shapes = trial.scenario.model.shapes
    which = "all parameters" if len(kept) == len(shapes) else listed(kept)
    if kept and kept == set(trial.scenario.model.frozen):
        which = "exactly the frozen parameters"
    return (
        f"Initial values are not broadcast: {which} kept each rank's own value. Broadcast every parameter from rank 0 "
        "when "
        "wrapping, in place (`dist.broadcast(p.data, src=0)`), and write the result back where a copy was sent."
    )


def _gradients(trial: Trial) -> str:
    """Explain the gradients of the first step in which any is wrong."""
    step, wrong = _first_wrong(trial)
    return _explain(trial, wrong, step) if wrong else ""


def _first_wrong(trial: Trial) -> tuple[int, list[Wrong]]:
    for step in range(trial.scenario.steps):
        wrong = list(_wrong_gradients(trial, step))
        if wrong:
            return step, wrong
    return 0, []


def _wrong_gradients(trial: Trial, step: int) -> Iterator[Wrong]:
    expected = trial.expected.gradients
    own = shard_gradients(trial.scenario, trial.inputs, trial.expected, step)
    fellows = scale_of(expected[step].values())
    for rank, seen in enumerate(trial.observations):
        gradients = seen.gradients(step)
        for name, wanted in expected[step].items():
            value = gradients.get(name)
            if value is None:
                yield Wrong(rank, name, "missing")
            elif not equal(value, wanted, fellows):
                parts = tuple(one.get(name, torch.zeros_like(wanted)) for one in own)
                shards = Shards(parts, rank, expected[step - 1].get(name) if step else None)
                yield Wrong(rank, name, _name(value, shards, fellows) or _swapped(value, name, expected[step]))


def _name(value: torch.Tensor, shards: Shards, fellows: float) -> str:
    """Return the first mistake that gives this value; those that give the right one by accident are left out."""
    for mistake in GRADIENT_MISTAKES:
        given = mistake.value(shards)
        if given is not None and not equal(given, shards.mean, fellows) and equal(value, given, fellows):
            return mistake.name
    return ""


def _swapped(value: torch.Tensor, name: str, expected: dict[str, torch.Tensor]) -> str:
    others = [other for other, right in expected.items() if other != name and equal(value, right)]
    return f"that of `{others[0]}`" if others else ""


def _explain(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Say what the most frequent mistake is, where it shows, and what its parameters have in common."""
    name, _ = Counter(one.mistake for one in wrong).most_common(1)[0]
    alike = [one for one in wrong if one.mistake == name]
    ranks = sorted({one.rank for one in alike})
    parameters = [p for p in trial.expected.gradients[step] if any(one.name == p for one in alike)]
    where = f"At step {step + 1}, on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    which, hint = _in_common(trial, parameters, step)
    if not name:
        return UNKNOWN + (f" Wrong are {which}.{hint}" if hint else "")
    if name == "missing":
        return f"{where}, {which} had no gradient after `on_after_backward`: something set `.grad` to None.{hint}"
    if name.startswith("that of"):
        return (
            f"{where}, the gradient of `{parameters[0]}` is {name}: gradients were mixed up. Every rank must launch "
            "its "
            f"collectives in the same order, and write each result back to the parameter it came from.{hint}"
        )
    known = next(mistake for mistake in GRADIENT_MISTAKES if mistake.name == name)
    return _sentence(known, where, which, ranks, trial.scenario.world_size) + hint


def _sentence(known: GradientMistake, where: str, which: str, ranks: list[int], world_size: int) -> str:
    some = known.name == "never synchronised" and 0 < len(ranks) < world_size
    only = " Only these ranks are wrong: was the result sent to one rank (`reduce`) in place of all?" if some else ""
    return f"Looks like *{known.name}*: {where}, the gradient of {which} is {known.seen}. {known.advice}{only}"


def _in_common(trial: Trial, parameters: list[str], step: int) -> tuple[str, str]:
    """Return which parameters are wrong, and a sentence on what they have in common when not all are."""
    spec = trial.scenario.model
    every = list(trial.expected.gradients[step])
    if set(parameters) == set(every):
        waiting = " A parameter without gradient must not keep the others waiting: send what is left after backward."
        return "every parameter", waiting if spec.branch in {"unused", "used_on_rank_0"} else ""
    shapes, wrong = spec.shapes, set(parameters)
    flat = {name for name in every if len(shapes[name]) < _MATRIX}
    scalar = {name for name in every if not shapes[name]}
    tied = {f"layers.{spec.tied[0]}.weight"} if spec.tied else set()
    transposed = {f"layers.{spec.transposed}.weight"} if spec.transposed is not None else set()
    thawed = set(spec.frozen)
    kinds = (
        (
            scalar,
            "the 0-dimensional parameter",
            " Code that flattens or slices often forgets tensors without dimensions.",
        ),
        (tied, "the shared parameter", " It is in the model twice: register it, and reduce it, once."),
        (
            transposed,
            "the parameter that is not contiguous",
            " Copy results back into the gradient itself, not a copy.",
        ),
        (thawed, "the parameters that were frozen at wrapping", " Look at `requires_grad` again in later steps."),
        (
            flat,
            "every one-dimensional parameter (biases)",
            " Does a condition on `dim()` or on the name leave them out?",
        ),
    )
    for kind, words, hint in kinds:
        if wrong == kind:
            return words, hint
    which = listed(parameters)
    if parameters == every[: len(parameters)]:
        return which, " These are the parameters whose gradients come last: is the last bucket launched and waited for?"
    if parameters == every[-len(parameters) :]:
        return which, " These are the parameters whose gradients come first: is the first bucket lost or overwritten?"
    return which, ""


def _left_behind(trial: Trial) -> str:
    """Explain ranks whose parameters stayed behind while others moved: the owner's update was not sent to them."""
    for step, wanted in enumerate(trial.expected.parameters):
        fellows = scale_of(wanted.values())
        before = trial.expected.before(step)
        stuck = [
            (rank, name)
            for rank, seen in enumerate(trial.observations)
            for name, right in wanted.items()
            if not equal(seen.parameters(step)[name], right, fellows)
            and equal(seen.parameters(step)[name], before[name], fellows)
        ]
        if stuck:
            names = [name for name in wanted if any(name == other for _, other in stuck)]
            ranks = sorted({rank for rank, _ in stuck})
            if len(ranks) < trial.scenario.world_size or trial.scenario.world_size == 1:
                return (
                    f"At step {step + 1}, {listed(names)} did not move on rank {', '.join(map(str, ranks))} while "
                    "other "
                    "ranks updated: after its step, the owner of a parameter must broadcast the new value to all."
                )
        if any(
            not equal(seen.parameters(step)[n], r, fellows) for seen in trial.observations for n, r in wanted.items()
        ):
            return ""
    return ""


def _trajectories(trial: Trial) -> str:
    """Explain parameters by another schedule that leads to them."""
    for mistake in TRAJECTORY_MISTAKES:
        changed = mistake.instead(trial.scenario)
        if changed == trial.scenario:
            continue
        other = train(changed, trial.inputs)
        for rank, seen in enumerate(trial.observations):
            if _matches(trial, seen.parameters, other.parameters) and not _same(trial, other.parameters):
                return f"Looks like *{mistake.name}*: on rank {rank}, {mistake.seen}. {mistake.advice}"
    return ""


def _matches(trial: Trial, seen: object, other: list[dict[str, torch.Tensor]]) -> bool:
    at = seen if callable(seen) else None
    return at is not None and all(_all_equal(at(step), other[step]) for step in range(trial.scenario.steps))


def _same(trial: Trial, other: list[dict[str, torch.Tensor]]) -> bool:
    return all(_all_equal(given, wanted) for given, wanted in zip(other, trial.expected.parameters, strict=True))


def _all_equal(seen: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    fellows = scale_of(wanted.values())
    return all(name in seen and equal(seen[name], value, fellows) for name, value in wanted.items())
