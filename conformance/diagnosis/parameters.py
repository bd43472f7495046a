"""Names the mistake behind wrong parameters if every gradient was right.

It uses only the first step after which a parameter is wrong. It compares the parameters with those of training runs
under other schedules, with their values before the step, and with the right values rounded to a coarser dtype.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from conformance.checks.trial import Trial
from conformance.checks.words import listed
from conformance.diagnosis.training_mistakes import TRAINING_MISTAKES, TrainingMistake
from conformance.oracle.tolerance import equal, is_rounded
from conformance.oracle.training import Trajectory
from conformance.scenarios.scenario import AddGroup, Unfreeze
from conformance.workload.numbers import wide

_NAMED = 2  # mistakes at most, if several lead to the same parameters
_FROM_OTHERS = "Or does a rank that does not own a parameter send its old value, and overwrite the new one?"


class Wrong(NamedTuple):
    """A wrong parameter or gradient on one rank, and the mistakes that would give it."""

    rank: int
    name: str
    mistakes: tuple[str, ...] = ()


def diagnose_parameters(trial: Trial) -> str:
    """Return the known mistake that explains the first wrong parameters, in words; empty if none does."""
    step, wrong = wrong_parameters(trial)
    explanations = (_made_up, _left_out, _stuck, _other_training, _rounded) if wrong else ()
    return next((found for explain in explanations if (found := explain(trial, wrong, step))), "")


def wrong_parameters(trial: Trial) -> tuple[int, list[Wrong]]:
    """Return the first step after which parameters are wrong, and these; (number of steps, []) if there are none."""
    for step, expected in enumerate(trial.expected.parameters):
        limits = trial.expected.parameter_limits[step]
        wrong = [
            Wrong(rank, name)
            for rank, seen in enumerate(trial.observations)
            for name, wanted in expected.items()
            if not equal(seen.parameters(step)[name], wanted, limits[name])
        ]
        if wrong:
            return step, wrong
    return trial.scenario.steps, []


def diagnose_omission(trial: Trial) -> str:
    """Return what of the scenario all ranks seem to have left out, in words; empty if nothing."""
    ranks, steps = range(trial.scenario.world_size), range(trial.scenario.steps)
    everything = [Wrong(rank, name) for rank in ranks for name in trial.scenario.model.shapes]
    for mistake in (TRAINING_MISTAKES["loaded weights not used"], TRAINING_MISTAKES["penalty not trained on"]):
        changed = mistake.instead(trial.scenario)
        if changed == trial.scenario:
            continue
        other = trial.under(changed)
        if all(_leads_to(other, trial, everything, step) for step in steps):
            return f"Looks like *{mistake.name}*: {mistake.seen}. {mistake.advice}"
    return ""


def _made_up(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that moved because of a gradient where one process has none."""
    given = [trial.observations[one.rank].gradients(step).get(one.name) for one in wrong]
    made_up = [value for value in given if value is not None]
    names = dict.fromkeys(one.name for one in wrong)
    if len(made_up) < len(wrong) or names.keys() & trial.expected.gradients[step].keys():
        return ""
    what = "a gradient" if any(value.any() for value in made_up) else "a gradient of zeros"
    return (
        f"Looks like *a gradient where there is none*: at step {step + 1}, after `on_after_backward`, {listed(names)} "
        f"had {what}; in one process it has none. An optimizer skips a parameter without a gradient, but applies "
        "weight decay and momentum if the gradient is zero. Leave `grad` at None if no rank has a gradient."
    )


def _left_out(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that the optimizer never trained: those that were added or unfrozen later, or all."""
    names, schedule = {one.name for one in wrong}, trial.scenario.schedule
    untrained = {
        "unfrozen parameter never trained": [one.parameters for one in schedule if isinstance(one, Unfreeze)],
        "only the first group trained": [group.parameters for group in trial.scenario.optimizer.groups[1:]],
        "added group never trained": [one.group.parameters for one in schedule if isinstance(one, AddGroup)],
    }
    known = [TRAINING_MISTAKES[mistake] for mistake, never in untrained.items() if names.issubset(chain(*never))]
    everything = trial.scenario.world_size * len(trial.scenario.model.trainable)
    if len(wrong) == everything and len(names) >= trial.scenario.world_size:  # if fewer, one owner may cause it
        known.append(TRAINING_MISTAKES["never trained"])
    found = _other_training(trial, wrong, step, known)
    sharded = (trial.scenario.replicated or trial.scenario.averaged) and trial.scenario.world_size > 1
    return f"{found} {_FROM_OTHERS}" if found and known[-1].name == "never trained" and sharded else found


def _other_training(
    trial: Trial, wrong: Sequence[Wrong], step: int, mistakes: Iterable[TrainingMistake] = TRAINING_MISTAKES.values()
) -> str:
    """Explain wrong parameters by mistakes whose schedules lead to them."""
    where = f" (on rank {wrong[0].rank}, {listed(dict.fromkeys(one.name for one in wrong))})"
    fits: list[str] = []
    for mistake in mistakes:
        changed = mistake.instead(trial.scenario)
        if changed != trial.scenario and _leads_to(trial.under(changed), trial, wrong, step):
            like = "Or like" if fits else "Looks like"
            fits.append(f"{like} *{mistake.name}*: {mistake.seen}{'' if fits else where}. {mistake.advice}")
    return " ".join(fits[:_NAMED])


def _leads_to(other: Trajectory, trial: Trial, wrong: Sequence[Wrong], step: int) -> bool:
    values, limits = other.parameters[step], other.parameter_limits[step]
    return all(equal(_seen(trial, one, step), values[one.name], limits[one.name]) for one in wrong)


def _seen(trial: Trial, one: Wrong, step: int) -> torch.Tensor:
    return trial.observations[one.rank].parameters(step)[one.name]


def _stuck(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that did not move on any rank, or moved on their owner only."""
    before, limits = trial.expected.starts[step], trial.expected.parameter_limits[step]
    if not all(equal(_seen(trial, one, step), before[one.name], limits[one.name]) for one in wrong):
        return ""
    ranks = Counter(one.name for one in wrong)
    everywhere = [name for name, count in ranks.items() if count == trial.scenario.world_size]
    if everywhere:
        return (
            f"At step {step + 1}, {listed(everywhere)} did not move on any rank: no rank's inner optimizer holds it, "
            "or another rank's old value overwrote the owner's new one. Does every group, also one that is added "
            "later, reach the inner optimizers? Does each owner send its own parameters?"
        )
    return (
        f"At step {step + 1}, {listed(ranks)} moved on one rank and not on the others: the owner of a parameter must "
        "send its new value to all ranks after each step."
    )


def _rounded(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that are right but rounded to a coarser dtype; name every dtype that fits."""
    pairs = [(_seen(trial, one, step), trial.expected.parameters[step][one.name]) for one in wrong]
    fitting = [
        str(dtype).removeprefix("torch.")
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        if all(_is_rounding(seen, right, dtype) for seen, right in pairs)
    ]
    if not fitting:
        return ""
    return (
        f"Looks like *rounded to {' or '.join(fitting)}*: {listed(dict.fromkeys(one.name for one in wrong))} lost "
        "digits on the way between ranks. Send parameters in their own dtype."
    )


def _is_rounding(seen: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a tensor is as near to the right one as rounding to `dtype` allows, and `dtype` can hold it."""
    if seen.shape != right.shape:
        return False
    eps = torch.finfo(dtype).eps
    near = (wide(seen) - wide(right)).abs() <= eps * wide(right).abs()
    return eps > torch.finfo(seen.dtype).eps and is_rounded(seen, dtype) and bool(near.all())
