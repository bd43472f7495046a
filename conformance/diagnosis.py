"""Names the mistake behind a failure: what known mistakes would have given, compared with what was seen.

Only the first step in which anything is wrong is looked at: before it, every rank still had the right parameters.
Gradients are matched one by one; what the wrong ones have in common then says more (only biases, only the last bucket,
...). Parameters are matched with whole training runs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from conformance.checks.check import Trial, listed
from conformance.data import Tensors, wide
from conformance.gradient_mistakes import GRADIENT_MISTAKES, Shards, is_rounded
from conformance.oracle import Trajectory, shard_gradients
from conformance.pattern import in_common
from conformance.tolerance import Limits, equal, scale_of
from conformance.training_mistakes import TRAINING_MISTAKES

UNKNOWN = "No known mistake gives these numbers."
_LATE = (
    "Looks like *one step late*: each step uses the average of the step before. Wait for this step's collectives, and "
    "write their results back, before the optimizer's step."
)


@dataclass(frozen=True)
class Wrong:
    """A wrong tensor of one rank, and the mistakes that would have given it."""

    rank: int
    name: str
    mistakes: tuple[str, ...] = ()


def diagnose(trial: Trial, wider: Trial | None = None) -> str:
    """Return which known mistake fits a trial that failed, or say that none does.

    Args:
        trial: the smallest one that failed.
        wider: the same with a larger model and more steps, in which a mistake may show more of itself.
    """
    if wider is not None:
        step, wrong = _wrong_gradients(wider)
        if wrong and _is_late(wider, wrong, step):
            return _LATE
        if wrong and {one.name for one in wrong} < set(wider.expected.gradients[step]):
            layers = len(wider.scenario.model.layers)
            return f"With a model of {layers} layers more can be seen. {_explain_gradients(wider, wrong, step)}"
    found = _initial_values(trial)
    if not found:
        step, wrong = _wrong_gradients(trial)
        found = _explain_gradients(trial, wrong, step) if wrong else _parameters(trial)
    return found or UNKNOWN


def _initial_values(trial: Trial) -> str:
    """Explain parameters that are not rank 0's right after wrapping."""
    kept = {
        name
        for seen, own in zip(trial.observations, trial.inputs, strict=True)
        for name, wanted in trial.inputs[0].weights.items()
        if not torch.equal(seen.wrapped[name], wanted) and torch.equal(seen.wrapped[name], own.weights[name])
    }
    if not kept:
        return ""
    which = "all parameters" if kept == set(trial.scenario.model.shapes) else listed(sorted(kept))
    if kept == set(trial.scenario.model.frozen):
        which = "exactly the frozen parameters"
    return (
        f"Initial values are not broadcast: {which} kept each rank's own value. Broadcast every parameter from rank 0 "
        "when wrapping, in place (`dist.broadcast(p.data, src=0)`), and write the result back where a copy was sent."
    )


def _wrong_gradients(trial: Trial) -> tuple[int, list[Wrong]]:
    """Return the first step with wrong gradients, and those."""
    for step, expected in enumerate(trial.expected.gradients):
        own = shard_gradients(trial.scenario, trial.inputs, trial.expected, step)
        several = trial.scenario.micro_batches > 1
        last = shard_gradients(trial.scenario, trial.inputs, trial.expected, step, last=True) if several else []
        previous = trial.expected.gradients[step - 1] if step else {}
        limits, wrong = trial.expected.gradient_limits[step], list[Wrong]()
        for rank, seen in enumerate(trial.observations):
            gradients = seen.gradients(step)
            for name, wanted in expected.items():
                value = gradients.get(name)
                if value is None:
                    wrong.append(Wrong(rank, name, ("missing",)))
                elif not equal(value, wanted, limit=limits[name]):
                    parts, lasts = (_parts(of, name, wanted) for of in (own, last))
                    shards = Shards(value, parts, rank, previous.get(name), lasts)
                    fitting = _fitting(shards, limits[name]) or _mixed_up(value, name, own, limits)
                    wrong.append(Wrong(rank, name, fitting))
        if wrong:
            return step, wrong
    return 0, []


def _fitting(shards: Shards, limit: float) -> tuple[str, ...]:
    """Return the mistakes that give this value; those that give the right one by accident are left out.

    A mistake's value may be larger than the right one, and so may its rounding.
    """
    if shards.seen.shape != shards.mean.shape:
        return ()
    values = [(mistake.name, mistake.value(shards)) for mistake in GRADIENT_MISTAKES]
    return tuple(
        name
        for name, value in values
        if value is not None
        and not equal(value, shards.mean, limit=limit)
        and equal(shards.seen, value, limit=limit * max(1.0, scale_of([value]) / (shards.magnitude or 1.0)))
    )


def _parts(own: Sequence[Tensors], name: str, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return each rank's gradient of a parameter, zeros where it has none."""
    return tuple(one.get(name, torch.zeros_like(like)) for one in own)


def _mixed_up(value: torch.Tensor, name: str, own: Sequence[Tensors], limits: Limits) -> tuple[str, ...]:
    """Say which ranks seem to have given the gradient of which other parameter in place of this one's."""
    fellows = {other: like for one in own for other, like in one.items() if other != name and like.shape == value.shape}
    for other, like in fellows.items():
        pairs = list(zip(_parts(own, name, like), _parts(own, other, like), strict=True))
        for chosen in product((0, 1), repeat=len(own)):
            mixture = torch.stack([pair[index] for pair, index in zip(pairs, chosen, strict=True)]).mean(0)
            if any(chosen) and equal(value, mixture, limit=max(limits[name], limits[other])):
                ranks = [str(rank) for rank, index in enumerate(chosen) if index]
                who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
                return (f"that of `{other}`" if all(chosen) else f"an average to which {who} gave that of `{other}`",)
    return ()


def _is_late(trial: Trial, wrong: Sequence[Wrong], step: int) -> bool:
    """Whether everything that is wrong at a step has the right value of that step at the next one."""
    if step + 1 >= trial.scenario.steps:
        return False
    expected, limits = trial.expected.gradients[step], trial.expected.gradient_limits[step]
    following = [seen.gradients(step + 1) for seen in trial.observations]
    return all(
        one.name in following[one.rank]
        and equal(following[one.rank][one.name], expected[one.name], limit=limits[one.name])
        for one in wrong
    )


def _explain_gradients(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Say which mistake explains the most, where it shows, and what its parameters have in common."""
    counted = Counter(name for one in wrong for name in one.mistakes)
    known = {mistake.name: mistake for mistake in GRADIENT_MISTAKES}
    order = [name for name in known if name in counted] + [name for name in counted if name not in known]
    best = max(order, key=lambda name: counted[name], default="")
    alike = [one for one in wrong if best in one.mistakes] if best else list(wrong)
    ranks = sorted({one.rank for one in alike})
    parameters = [name for name in trial.expected.gradients[step] if any(one.name == name for one in alike)]
    which, hint = in_common(trial.scenario.model, parameters, list(trial.expected.gradients[step]))
    where = f"At step {step + 1}, on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    if not best:
        return f"{UNKNOWN} {where}, wrong is the gradient of {which}.{hint}"
    if best == "missing":
        return f"{where}, there is no gradient of {which} after `on_after_backward`: it was set to None.{hint}"
    if best not in known:
        return (
            f"{where}, the gradient of `{parameters[0]}` is {best}: gradients were mixed up. Every rank must launch "
            "its collectives in the same order, and write each result back to the parameter it came from."
        )
    return f"Looks like *{best}*: {where}, the gradient of {which} is {known[best].seen}. {known[best].advice}{hint}"


def _parameters(trial: Trial) -> str:
    """Explain wrong parameters where every gradient was right."""
    for step, expected in enumerate(trial.expected.parameters):
        limits = trial.expected.parameter_limits[step]
        wrong = [
            Wrong(rank, name)
            for rank, seen in enumerate(trial.observations)
            for name, wanted in expected.items()
            if not equal(seen.parameters(step)[name], wanted, limit=limits[name])
        ]
        if wrong:
            explanations = (_made_up, _stuck, _other_training, _rounded)
            return next((found for explain in explanations if (found := explain(trial, wrong, step))), "")
    return ""


def _made_up(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that moved because they were given a gradient that they do not have."""
    given = [trial.observations[one.rank].gradients(step).get(one.name) for one in wrong]
    made_up = [value for value in given if value is not None]
    names = dict.fromkeys(one.name for one in wrong)
    if len(made_up) < len(wrong) or names.keys() & trial.expected.gradients[step].keys():
        return ""
    what = "a gradient" if any(value.any() for value in made_up) else "a gradient of zeros"
    return (
        f"Looks like *a gradient where there is none*: at step {step + 1}, after `on_after_backward`, {listed(names)} "
        f"had {what}, and in one process has none. An optimizer leaves alone what has no gradient; what has one, even "
        "if it is zero, decays and keeps its momentum. Leave `grad` at None where no rank has a gradient."
    )


def _other_training(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain wrong parameters by another schedule that leads to them."""
    for mistake in TRAINING_MISTAKES:
        changed = mistake.instead(trial.scenario)
        if changed != trial.scenario and _leads_to(trial.under(changed), trial, wrong, step):
            where = f"on rank {wrong[0].rank}, {listed(dict.fromkeys(one.name for one in wrong))}"
            return f"Looks like *{mistake.name}*: {mistake.seen} ({where}). {mistake.advice}"
    return ""


def _leads_to(other: Trajectory, trial: Trial, wrong: Sequence[Wrong], step: int) -> bool:
    values, limits = other.parameters[step], other.parameter_limits[step]
    return all(
        equal(trial.observations[one.rank].parameters(step)[one.name], values[one.name], limit=limits[one.name])
        for one in wrong
    )


def _stuck(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that did not move: on all ranks, or on all but the one that owns them."""
    before, limits = trial.expected.before(step), trial.expected.parameter_limits[step]
    still = [
        one
        for one in wrong
        if equal(trial.observations[one.rank].parameters(step)[one.name], before[one.name], limit=limits[one.name])
    ]
    if len(still) < len(wrong):
        return ""
    ranks = Counter(one.name for one in still)
    everywhere = [name for name, count in ranks.items() if count == trial.scenario.world_size]
    if everywhere:
        return (
            f"At step {step + 1}, {listed(everywhere)} did not move on any rank: no rank's inner optimizer holds it, "
            "or what its owner computed was overwritten by another rank's old value. Are all parameter groups, and "
            "later ones too, given to their owners, and is each parameter sent from its owner?"
        )
    return (
        f"At step {step + 1}, {listed(ranks)} moved on one rank and not on the others: the owner of a parameter must "
        "send its new value to all ranks after each step."
    )


def _rounded(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that are the right ones rounded to a coarser dtype: where several fit, name them all."""
    pairs = [
        (trial.observations[one.rank].parameters(step)[one.name], trial.expected.parameters[step][one.name])
        for one in wrong
    ]
    fitting = [
        str(dtype).removeprefix("torch.")
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        if all(_is_rounding(seen, right, dtype) for seen, right in pairs)
    ]
    if not fitting:
        return ""
    return (
        f"Looks like *rounded to {' or '.join(fitting)}*: {listed(dict.fromkeys(one.name for one in wrong))} lost the "
        "last digits on the way between ranks. Send parameters in their own dtype."
    )


def _is_rounding(seen: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor has the digits of a coarser dtype, and is no further from the right one than its rounding."""
    eps = torch.finfo(dtype).eps
    near = (wide(seen) - wide(right)).abs() <= eps * wide(right).abs()
    return eps > torch.finfo(seen.dtype).eps and is_rounded(seen, dtype) and bool(near.all())
