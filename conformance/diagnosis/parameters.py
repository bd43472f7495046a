"""Names the mistake behind wrong parameters where every gradient was right.

Only the first step after which a parameter is wrong is looked at. What was seen is held against whole training runs
under other schedules, and against what a parameter that never moved, or lost its last digits, would be.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from conformance.checks.trial import Trial
from conformance.checks.words import listed
from conformance.diagnosis.training_mistakes import BY_NAME, TRAINING_MISTAKES, TrainingMistake
from conformance.oracle.tolerance import equal, is_rounded
from conformance.oracle.training import Trajectory
from conformance.scenarios.scenario import AddGroup, Scenario, Unfreeze
from conformance.workload.numbers import wide

_NAMED = 2  # of mistakes that all lead to what was seen
_FROM_OTHERS = "Or is each sent from a rank that does not update it, and so overwritten with its old value?"


class Wrong(NamedTuple):
    """A parameter that is to be explained, and the rank that has it."""

    rank: int
    name: str


def diagnose_parameters(trial: Trial) -> str:
    """Return which known mistake explains parameters that are wrong though every gradient was right, or nothing."""
    step, wrong = wrong_parameters(trial)
    explanations = (_made_up, _left_out, _stuck, _other_training, _rounded) if wrong else ()
    return next((found for explain in explanations if (found := explain(trial, wrong, step))), "")


def wrong_parameters(trial: Trial) -> tuple[int, list[Wrong]]:
    """Return the first step after which parameters are wrong, and those."""
    for step, expected in enumerate(trial.expected.parameters):
        limits = trial.expected.parameter_limits[step]
        wrong = [
            Wrong(rank, name)
            for rank, seen in enumerate(trial.observations)
            for name, wanted in expected.items()
            if not equal(seen.parameters(step)[name], wanted, limit=limits[name])
        ]
        if wrong:
            return step, wrong
    return trial.scenario.steps, []


def diagnose_omission(trial: Trial) -> str:
    """Return whether all ranks trained as if something that the scenario has were not in it, in words, or nothing."""
    ranks, steps = range(trial.scenario.world_size), range(trial.scenario.steps)
    everything = [Wrong(rank, name) for rank in ranks for name in trial.scenario.model.shapes]
    for mistake in (BY_NAME["loaded weights not used"], BY_NAME["penalty not trained on"]):
        changed = mistake.instead(trial.scenario)
        if changed == trial.scenario:
            continue
        other = trial.under(changed)
        if all(_leads_to(other, trial, everything, step) for step in steps):
            return f"Looks like *{mistake.name}*: {mistake.seen}. {mistake.advice}"
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


def _left_out(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that the optimizer has never trained: those that came later, or all of them."""
    names = {one.name for one in wrong}
    known = [BY_NAME[mistake] for mistake, those in _untrained(trial.scenario).items() if names <= those]
    everything = trial.scenario.world_size * len(trial.scenario.model.trainable)
    if len(wrong) == everything and len(names) >= trial.scenario.world_size:  # with fewer, one owner may be at fault
        known.append(BY_NAME["never trained"])
    found = _other_training(trial, wrong, step, known)
    sharded = (trial.scenario.replicated or trial.scenario.averaged) and trial.scenario.world_size > 1
    return f"{found} {_FROM_OTHERS}" if found and known[-1].name == "never trained" and sharded else found


def _untrained(scenario: Scenario) -> dict[str, set[str]]:
    """Return, by mistake, the parameters that an optimizer with it would never train."""
    unfrozen = [event.parameters for event in scenario.schedule if isinstance(event, Unfreeze)]
    added = [event.group.parameters for event in scenario.schedule if isinstance(event, AddGroup)]
    return {
        "unfrozen parameter never trained": {name for names in unfrozen for name in names},
        "added group never trained": {name for names in added for name in names},
    }


def _other_training(
    trial: Trial, wrong: Sequence[Wrong], step: int, mistakes: Sequence[TrainingMistake] = TRAINING_MISTAKES
) -> str:
    """Explain wrong parameters by another schedule that leads to them."""
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
    return all(
        equal(trial.observations[one.rank].parameters(step)[one.name], values[one.name], limit=limits[one.name])
        for one in wrong
    )


def _stuck(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Explain parameters that did not move: on all ranks, or on all but the one that owns them."""
    before, limits = trial.expected.starts[step], trial.expected.parameter_limits[step]
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
