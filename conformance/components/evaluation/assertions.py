"""Assertions about distributed evaluation: one accuracy for all ranks, in which every sample counts once."""

import math
from itertools import product

import torch

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, never_awaited
from conformance.components.evaluation.accuracy import Counts, accuracy, mistaken
from conformance.components.evaluation.numbers import OTHER_LABELS

_EXACT = 1e-6  # sums may be kept in float32
_MODULES = {"the model": "training", "its module `dropout`": "dropout_training"}
_LEFT = {
    "same_parameters": "a parameter's numbers or its dtype",
    "same_trainable": "which parameters require gradients",
    "same_gradients": "a gradient that was there before, or has made one",
}
_STARTS = (("", True), ("again/", False))  # evaluations, by whether the model trained, and gradients were turned on


def results_are_waited_for(trial: CaseTrial) -> None:
    """Hold the accuracy to being right where results of collectives are NaN, or the rank's own counts, until a wait."""
    problem, _ = _wrong(trial)
    forgotten = next((found for rank in range(len(trial.answers)) if (found := trial.unawaited(rank))), [])
    unset = any(bool(answer["accuracy"].isnan() & answer["accuracy_is_number"]) for answer in trial.answers)
    if problem and (forgotten or unset):
        raise Violation(f"{problem}{never_awaited(forgotten)}", WAIT)


def global_accuracy(trial: CaseTrial) -> None:
    """Hold the accuracy on every rank to the share of right samples among those of all ranks."""
    problem, advice = _wrong(trial)
    if problem:
        raise Violation(problem, advice)


def counts_anew(trial: CaseTrial) -> None:
    """Hold the accuracy of a second evaluation to its own samples."""
    problem, advice = _wrong(trial, "again/")
    if problem:
        raise Violation(
            f"The second evaluation is of the same inputs with other labels. {problem}",
            advice or "Let the counts begin with zero in each call; a default argument is made once for all calls.",
        )


def evaluates(trial: CaseTrial) -> None:
    """Hold each call of the model to evaluation mode, of all modules, without gradients."""
    for rank, answer in enumerate(trial.answers):
        if bool(answer["called_in_training"]):
            raise Violation(f"On rank {rank}, the model was called in training mode.", "Call `model.eval()` before.")
        if bool(answer["dropout_in_training"]):
            raise Violation(
                f"On rank {rank}, the model was called while its module `dropout` was in training mode.",
                "Call `model.eval()`, which reaches every module: `model.training = False` is the model's own mode.",
            )
        if bool(answer["graphs_built"]):
            raise Violation(
                f"On rank {rank}, the model's outputs require gradients.", "Evaluate under `torch.no_grad()`."
            )


def modes_stay(trial: CaseTrial) -> None:
    """Hold every module to the mode in which it was before."""
    for rank, answer in enumerate(trial.answers):
        for (prefix, before), (name, flag) in product(_STARTS, _MODULES.items()):
            if bool(answer[f"{prefix}{flag}"]) != before:
                raise Violation(
                    f"On rank {rank}, {name} was in {_mode(before)} before, and is in {_mode(not before)} afterwards.",
                    "Keep `module.training` of each of `model.modules()` before, and set it at the end.",
                )
        if bool(answer["frozen_training"]):
            raise Violation(
                f"On rank {rank}, the model was in training mode but for one module, `frozen`, which is in training "
                "mode afterwards: a frozen norm would change its statistics from now on.",
                "`model.train()` sets all modules: keep `module.training` of each of `model.modules()`, and set it.",
            )


def arguments_stay(trial: CaseTrial) -> None:
    """Hold parameters, gradients, and whether gradients are turned on to what they were before."""
    for rank, answer in enumerate(trial.answers):
        for (prefix, _), (flag, words) in product(_STARTS, _LEFT.items()):
            if not bool(answer[f"{prefix}{flag}"]):
                raise Violation(
                    f"On rank {rank}, evaluation has changed {words}.",
                    "Evaluate under `torch.no_grad()`, which leaves all of that alone.",
                )
        for prefix, before in _STARTS:
            if bool(answer[f"{prefix}gradients"]) != before:
                raise Violation(
                    f"On rank {rank}, gradients were turned {_on(before)} before, and are turned {_on(not before)} "
                    "afterwards.",
                    "Use `with torch.no_grad():`, which puts back what was, instead of `torch.set_grad_enabled`.",
                )


def _mode(training: bool) -> str:  # noqa: FBT001  what `model.training` is
    return "training mode" if training else "evaluation mode"


def _on(gradients: bool) -> str:  # noqa: FBT001  what `torch.is_grad_enabled` gives
    return "on" if gradients else "off"


def _wrong(trial: CaseTrial, which: str = "") -> tuple[str, str]:
    """Return what is wrong with the accuracy of an evaluation, the first or "again/", and which mistake fits."""
    sizes, right = trial.case.sizes, _right(trial, OTHER_LABELS if which else 0)
    expected = accuracy(sizes, right)
    seen = [float(answer[f"{which}accuracy"]) for answer in trial.answers]
    rank = next((rank for rank, value in enumerate(seen) if not _alike(value, expected)), None)
    if rank is None:
        return "", ""
    if not trial.answers[rank][f"{which}accuracy_is_number"]:
        return f"On rank {rank}, `evaluate` returned no number.", "Return the accuracy, as a float, on every rank."
    named = (name for name, values in mistaken(sizes, right).items() if all(map(_alike, seen, values)))
    fits = "* or *".join(named)
    gave = "no number" if math.isnan(seen[rank]) else format(seen[rank], ".6g")
    problem = (
        f"On rank {rank}, `evaluate` gave {gave}; expected {expected:.6g}: {sum(map(sum, right))} of "
        f"{sum(map(sum, sizes))} samples are right, {_by_rank(right, sizes)}."
    )
    return problem, f"Looks like *{fits}*. All-reduce both sums, then divide." if fits else ""


def _right(trial: CaseTrial, other: int) -> Counts:
    """Count the right samples of each rank's batches, whose labels are `other` classes on."""
    return [
        [_count(given[f"x/{batch}"], given[f"y/{batch}"] + other, given["weight"]) for batch in range(len(own))]
        for given, own in zip(trial.given, trial.case.sizes, strict=True)
    ]


def _count(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> int:
    return int(((x @ weight.T).argmax(1) == y % len(weight)).sum())


def _by_rank(right: Counts, sizes: Counts) -> str:
    """Return "3/4 + 1/2 on rank 0", and so on."""
    return ", ".join(
        f"{' + '.join(f'{r}/{s}' for r, s in zip(*own, strict=True)) or 'no batch'} on rank {rank}"
        for rank, own in enumerate(zip(right, sizes, strict=True))
    )


def _alike(seen: float, wanted: float) -> bool:
    return math.isclose(seen, wanted, rel_tol=_EXACT, abs_tol=_EXACT)
