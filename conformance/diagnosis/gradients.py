"""Names the mistake behind a failure: compares what ranks reported with what each known mistake would give.

It uses only the first step with a wrong gradient: before that step, every rank still had the right parameters. Each
wrong gradient is compared on its own; then `_in_common` says what the wrong ones have in common, such as being biases.
If all gradients are right, `parameters` compares the parameters.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import torch

from conformance.checks.traffic import launches
from conformance.checks.trial import Trial
from conformance.checks.words import listed
from conformance.diagnosis.gradient_mistakes import GRADIENT_MISTAKES, Shards
from conformance.diagnosis.parameters import Wrong, diagnose_omission, diagnose_parameters, wrong_parameters
from conformance.diagnosis.training_facts import explain_by_facts
from conformance.oracle.tolerance import Limits, equal, scale_of
from conformance.oracle.training import shard_gradients
from conformance.scenarios.model_spec import ModelSpec
from conformance.workload.numbers import Tensors

_MATRIX = 2
UNKNOWN = "No known mistake gives these numbers."
_LATE = (
    "Looks like *one step late*: each step uses the average of the step before. Wait for this step's collectives, and "
    "write their results back, before the optimizer's step."
)
_ABORTED = (
    "A backward pass raised before this step, and what it had launched was kept: handles, flat copies, counts. Drop it "
    "when the next step begins, in forward or in `on_train_batch_start`."
)
_NOTHING_SENT = (
    "No gradient was sent in this step. Launch a collective for each gradient or bucket; also for a bucket that is not "
    "full when backward is over."
)


def diagnose(trial: Trial, wider: Trial | None = None) -> str:
    """Return the known mistake that explains a failed trial, in words, or `UNKNOWN`.

    Args:
        trial: the smallest trial that failed.
        wider: the same with a larger model and more steps, which may distinguish more mistakes.
    """
    if wider is not None:
        step, wrong = _wrong_gradients(wider)
        if wrong and (found := explain_by_facts(wider, step)):
            return found
        if wrong and _is_late(wider, wrong, step):
            return _LATE
        if wrong and {one.name for one in wrong} < set(wider.expected.gradients[step]):
            layers = len(wider.scenario.model.layers)
            return f"A larger model, of {layers} layers, shows more. {_explain_gradients(wider, wrong, step)}"
    found = initial_values(trial) or diagnose_omission(trial)
    if not found:
        step, wrong = _wrong_gradients(trial)
        first_wrong, _ = wrong_parameters(trial)  # gradients of later steps are those of another model
        if wrong and step <= first_wrong:
            found = explain_by_facts(trial, step) or _explain_gradients(trial, wrong, step)
        else:
            found = diagnose_parameters(trial)
    return found or UNKNOWN


def initial_values(trial: Trial) -> str:
    """Explain parameters that differ from rank 0's right after wrapping."""
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
        "when wrapping, in place (`dist.broadcast(p.data, src=0)`); if a copy is sent, write the result back."
    )


def _wrong_gradients(trial: Trial) -> tuple[int, list[Wrong]]:
    """Return the first step with wrong gradients, and these gradients; (0, []) if there are none."""
    for step, expected in enumerate(trial.expected.gradients):
        own = shard_gradients(trial.scenario, trial.inputs, trial.expected, step)
        passes = trial.scenario.micro_batches
        last = shard_gradients(trial.scenario, trial.inputs, trial.expected, step, last=True) if passes > 1 else []
        previous = trial.expected.gradients[step - 1] if step else {}
        limits, wrong = trial.expected.gradient_limits[step], list[Wrong]()
        for rank, seen in enumerate(trial.observations):
            gradients = seen.gradients(step)
            for name, wanted in expected.items():
                value = gradients.get(name)
                if value is None:
                    wrong.append(Wrong(rank, name, ("missing",)))
                elif not equal(value, wanted, limits[name]):
                    parts, lasts = (_parts(of, name, wanted) for of in (own, last))
                    shards = Shards(value, parts, rank, previous.get(name), lasts)
                    fitting = _fitting(shards, limits[name]) or _mixed_up(value, name, own, limits)
                    wrong.append(Wrong(rank, name, fitting))
        if wrong:
            return step, wrong
    return 0, []


def _fitting(shards: Shards, limit: float) -> tuple[str, ...]:
    """Return the mistakes that give this value, without those that happen to give the right value too.

    A mistake's value may be larger than the right value; its rounding then is larger too.
    """
    if shards.seen.shape != shards.mean.shape:
        return ()
    return tuple(
        name
        for name, mistake in GRADIENT_MISTAKES.items()
        if (value := mistake.value(shards)) is not None
        and not equal(value, shards.mean, limit)
        and equal(shards.seen, value, limit * max(1.0, scale_of([value]) / (shards.magnitude or 1.0)))
    )


def _parts(own: Sequence[Tensors], name: str, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return each rank's gradient of a parameter, zeros for a rank that has none."""
    return tuple(one.get(name, torch.zeros_like(like)) for one in own)


def _mixed_up(value: torch.Tensor, name: str, own: Sequence[Tensors], limits: Limits) -> tuple[str, ...]:
    """Describe an average to which ranks gave the gradient of another parameter of the same shape."""
    fellows = {other: like for one in own for other, like in one.items() if other != name and like.shape == value.shape}
    for other, like in fellows.items():
        pairs = list(zip(_parts(own, name, like), _parts(own, other, like), strict=True))
        for chosen in product((0, 1), repeat=len(own)):
            mixture = torch.stack([pair[index] for pair, index in zip(pairs, chosen, strict=True)]).mean(0)
            if any(chosen) and equal(value, mixture, max(limits[name], limits[other])):
                ranks = "" if all(chosen) else _ranks(rank for rank, index in enumerate(chosen) if index)
                return (f"{f'an average to which {ranks} gave ' if ranks else ''}the gradient of `{other}`",)
    return ()


def _is_late(trial: Trial, wrong: Sequence[Wrong], step: int) -> bool:
    """Return whether every wrong gradient of a step has the right value one step later."""
    if step + 1 >= trial.scenario.steps:
        return False
    expected, limits = trial.expected.gradients[step], trial.expected.gradient_limits[step]
    following = [seen.gradients(step + 1) for seen in trial.observations]
    return all(
        one.name in following[one.rank] and equal(following[one.rank][one.name], expected[one.name], limits[one.name])
        for one in wrong
    )


def _explain_gradients(trial: Trial, wrong: Sequence[Wrong], step: int) -> str:
    """Describe the mistake that explains the most gradients, where it shows, and what its parameters have in common."""
    counted = Counter(name for one in wrong for name in one.mistakes)
    best = max((*GRADIENT_MISTAKES, *counted), key=lambda name: counted[name]) if counted else ""
    alike = [one for one in wrong if best in one.mistakes] if best else list(wrong)
    every = list(trial.expected.gradients[step])
    parameters = [name for name in every if any(one.name == name for one in alike)]
    which, hint = _in_common(trial.scenario.model, parameters, every)
    where = f"At step {step + 1}, on {_ranks({one.rank for one in alike})}"
    if not best:
        wrong_there = f"{where}, the gradient of {which} is wrong."
        return f"{wrong_there} {_ABORTED}" if _follows_exception(trial, step) else f"{UNKNOWN} {wrong_there}{hint}"
    if best == "missing":
        return f"{where}, there is no gradient of {which} after `on_after_backward`: it was set to None.{hint}"
    if best not in GRADIENT_MISTAKES:
        return (
            f"{where}, the gradient of `{parameters[0]}` is {best}: gradients were mixed up. Every rank must launch "
            "its collectives in the same order, and write each result back to the parameter that it belongs to."
        )
    advice = _special_advice(trial, best, step, hint) or f"{GRADIENT_MISTAKES[best].advice}{hint}"
    return f"Looks like *{best}*: {where}, the gradient of {which} is {GRADIENT_MISTAKES[best].seen}. {advice}"


def _follows_exception(trial: Trial, step: int) -> bool:
    return step == trial.scenario.aborts


def _special_advice(trial: Trial, mistake: str, step: int, hint: str) -> str:
    """Return advice on a mistake that facts beside the numbers give; empty if they give none.

    Args:
        trial: what failed.
        mistake: the name of the mistake that gives the numbers.
        step: the first step with a wrong gradient.
        hint: what the wrong parameters have in common suggests; empty if nothing.
    """
    if _follows_exception(trial, step):
        return _ABORTED
    if mistake != "never synchronised":
        return ""
    sent = any(launches(seen.happenings[step], trial.scenario) for seen in trial.observations)
    return hint.strip() if sent else _NOTHING_SENT


def _ranks(ranks: Iterable[int]) -> str:
    """Return "rank 1", or "ranks 0, 2"."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _in_common(spec: ModelSpec, wrong: Sequence[str], every: Sequence[str]) -> tuple[str, str]:
    """Return words for the wrong parameters, and advice after a space, or nothing; names are in forward order."""
    for kind, words, advice in _kinds(spec, every):
        if kind and set(wrong) == kind:
            return words, f" {advice}" if advice else ""
    which, sizes = listed(wrong), {name: math.prod(spec.shapes[name]) for name in every}
    most, right = max(sizes[name] for name in wrong), [sizes[name] for name in every if name not in wrong]
    if right and most < min(right):
        return f"every parameter with up to {most} elements", " Does the code treat small tensors differently?"
    if list(wrong) == list(every[: len(wrong)]):
        return which, " Backward computes their gradients last: is the last bucket launched and waited for?"
    if list(wrong) == list(every[-len(wrong) :]):
        return which, " Backward computes their gradients first: is the first bucket lost, or overwritten?"
    return which, ""


def _kinds(spec: ModelSpec, every: Sequence[str]) -> Iterator[tuple[set[str], str, str]]:
    """Yield kinds of parameters, the most specific first: names, words, advice."""
    yield {"scale"} if spec.scale else set(), "the 0-dimensional parameter", "Do not skip tensors without dimensions."
    tied = {f"layers.{spec.tied[0]}.weight"} if spec.tied else set[str]()
    yield tied, "the parameter that two layers share", "The model has it twice: reduce it once."
    gapped = {f"layers.{index}.weight" for index in (spec.transposed, spec.gapped) if index is not None}
    copied = "`.contiguous()` makes a copy: copy the result back into the gradient itself."
    yield gapped, "the parameter that is not contiguous", copied
    frozen = {name for name in spec.frozen if name in every}
    yield frozen, "the parameters that were frozen at wrapping", "Look at `requires_grad` again in later steps."
    waits = spec.branch not in {"none", "order_by_rank"}
    branches = {name for name in every if name.startswith("branches.")} if waits else set()
    absent = "A rank that does not use them needs the average too: write it back even if `.grad` was None."
    yield branches, "the parameters that not every rank uses in every step", absent
    late = "A parameter without a gradient must not delay its bucket for ever: send the rest after backward."
    yield set(every), "every parameter", late if waits else ""
    biases = {name for name in every if len(spec.shapes[name]) < _MATRIX}
    yield biases, "every one-dimensional parameter (biases)", "Does a condition on `dim()` or on the name exclude them?"
