"""Assertions about distributed evaluation: one accuracy for all ranks, in which every sample counts once."""

import math
from collections.abc import Mapping
from itertools import product

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, never_awaited
from conformance.components.evaluation.accuracy import Counts, accuracy, mistaken
from conformance.components.evaluation.case import OTHER_LABELS
from conformance.workload.numbers import Tensors

_EXACT = 1e-6  # sums may be kept in float32
_STARTS = {  # of the evaluations: the model's mode, and whether gradients are turned on
    "": {"mode": "training", "other": "evaluation", "on": "on", "off": "off"},
    "again/": {"mode": "evaluation", "other": "training", "on": "off", "off": "on"},
}
_WAS_AND_IS = "was in {mode} mode before, and is in {other} mode afterwards"
_KEEP_MODES = "Keep `module.training` of each of `model.modules()` before, and set it at the end."
_NO_GRAD = "Evaluate under `torch.no_grad()`, which leaves all of that alone."


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
    faults = {
        "called_in_training": ("the model was called in training mode", "Call `model.eval()` before."),
        "dropout_in_training": (
            "the model was called while its module `dropout` was in training mode",
            "Call `model.eval()`, which reaches every module: `model.training = False` is the model's own mode.",
        ),
        "graphs_built": ("the model's outputs require gradients", "Evaluate under `torch.no_grad()`."),
    }
    _hold(trial, faults)


def modes_stay(trial: CaseTrial) -> None:
    """Hold every module to the mode in which it was before."""
    faults = {
        "mode": (f"the model {_WAS_AND_IS}", _KEEP_MODES),
        "mode_of_dropout": (f"its module `dropout` {_WAS_AND_IS}", _KEEP_MODES),
        "mode_of_frozen": (
            "the module `frozen` was kept in evaluation mode, as a frozen norm, and is in training mode afterwards",
            "`model.train()` sets all modules: keep `module.training` of each of `model.modules()`, and set it.",
        ),
    }
    _hold(trial, faults)


def arguments_stay(trial: CaseTrial) -> None:
    """Hold parameters, gradients, and whether gradients are turned on to what they were before."""
    faults = {
        "parameters": ("evaluation has changed a parameter's numbers or its dtype", _NO_GRAD),
        "trainable": ("evaluation has changed which parameters require gradients", _NO_GRAD),
        "gradients": ("evaluation has changed a gradient that was there before, or has made one", _NO_GRAD),
        "turned": (
            "gradients were turned {on} before, and are turned {off} afterwards",
            "Use `with torch.no_grad():`, which puts back what was, instead of `torch.set_grad_enabled`.",
        ),
    }
    _hold(trial, faults)


def _hold(trial: CaseTrial, faults: Mapping[str, tuple[str, str]]) -> None:
    """Hold both evaluations on each rank to none of the faults; by name, their words and advice."""
    for rank, answer in enumerate(trial.answers):
        for (prefix, start), (name, (words, advice)) in product(_STARTS.items(), faults.items()):
            if f"{prefix}{name}" in answer:
                raise Violation(f"On rank {rank}, {words.format(**start)}.", advice)


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

    def count(given: Tensors, batch: int) -> int:
        weight = given["weight"]
        return int(((given[f"x/{batch}"] @ weight.T).argmax(1) == (given[f"y/{batch}"] + other) % len(weight)).sum())

    ranks = zip(trial.given, trial.case.sizes, strict=True)
    return [[count(given, batch) for batch in range(len(own))] for given, own in ranks]


def _by_rank(right: Counts, sizes: Counts) -> str:
    """Return "3/4 + 1/2 on rank 0", and so on."""
    return ", ".join(
        f"{' + '.join(f'{r}/{s}' for r, s in zip(*own, strict=True)) or 'no batch'} on rank {rank}"
        for rank, own in enumerate(zip(right, sizes, strict=True))
    )


def _alike(seen: float, wanted: float) -> bool:
    return math.isclose(seen, wanted, rel_tol=_EXACT, abs_tol=_EXACT)
