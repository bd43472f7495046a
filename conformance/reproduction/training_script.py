"""Writes a script that trains with the submission and in one process, in plain torch, and compares the numbers."""

from collections.abc import Iterator
from typing import Any

import torch

from conformance.checks.trial import Trial
from conformance.oracle.training import train
from conformance.reproduction.model_code import has_places, is_explicit, model_lines
from conformance.reproduction.script import Failure, Reading, data_lines, is_readable
from conformance.scenarios.layers import Dtype, Embedding
from conformance.scenarios.scenario import AddGroup, Decay, Event, Freeze, OneCycle, Scenario, SetOption, Unfreeze
from conformance.submissions.contract import Kind
from conformance.workload.models import GAIN
from conformance.workload.numbers import RankInputs, Tensors, wide

# Between rounding, which steps carry on, and what a known mistake changes in a drawn scenario.
_TOLERANCES: dict[Dtype, float] = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.03, "float16": 0.01}
_SHOWN = AddGroup | Decay | Freeze | OneCycle | SetOption | Unfreeze


def flat_text(failure: Failure, scenario: Scenario, seed: int) -> tuple[str, list[str]]:
    """Return a flat script, and what it does not show of the scenario: with anything there, it is of no use.

    Args:
        failure: what it has to show.
        scenario: what failed.
        seed: the integer that its numbers are drawn from.
    """
    contract, wrapper = failure.component.contract, failure.component.contract.wrapper
    if why := _beyond(scenario, contract.kind):
        return "", [why]
    data = _data(scenario, failure.component.numbers(scenario, seed)[0])
    if not is_readable([tensors for ranks in data.values() for tensors in ranks]):
        return "", ["so many numbers"]
    s, m, o = Reading(scenario), Reading(scenario.model), Reading(scenario.optimizer)
    text = failure.render(
        failure.own_template or "training.py.jinja",
        s=s,
        m=m,
        o=o,
        model_lines=list(model_lines(m)),
        places=has_places(m),
        gain=f", gain={GAIN}" if m.keyword else f", {GAIN}" if m.positional else "",
        params=_params(s, o),
        events=[line for event in s.schedule for line in _event_lines(event, o)],
        scheduler=next((made for event in s.schedule if (made := _scheduler(event, s.steps))), ""),
        sparse=any(isinstance(layer, Embedding) and layer.sparse for layer in m.layers),
        samples=sum(map(scenario.batch_of, range(s.world_size))),
        world_size=s.world_size,
        tolerance=tolerance_of(scenario),
        data=[line for name, ranks in data.items() for line in data_lines(name, ranks)],
        make=failure.called(contract.optimizer),
        get=failure.called(wrapper.get if wrapper else None),
        after_backward=failure.called(wrapper.after_backward if wrapper else None),
        batch_start=failure.called(wrapper.batch_start if wrapper else None),
        bucket=f", {s.bucket_size_mb!r}" if wrapper and wrapper.takes_bucket_size else "",
    )
    known = ("seed", "batch", "optimizer", "model", "equal_start", "lossy")
    return text, [*s.unread(*known), *m.unread("inputs", "activation"), *o.unread()]


def tolerance_of(scenario: Scenario) -> float:
    """Return how far numbers may be apart, relative to them and in absolute terms."""
    dtypes = (scenario.model.dtype, *scenario.model.dtypes.values())
    return max(scenario.lossy, *(_TOLERANCES.get(dtype, 1.0) for dtype in dtypes))


def shows(trial: Trial, kind: Kind) -> bool:
    """Whether the comparison of a flat script finds something in what ranks saw of a component of this kind."""
    right, tolerance = train(trial.scenario, trial.inputs), tolerance_of(trial.scenario)
    moments = {"wrapped": trial.inputs[0].weights}
    for step in range(trial.scenario.steps):
        moments[f"parameter/{step}"] = right.parameters[step]
        if kind != "engine":  # which shows no gradients
            moments[f"gradient/{step}"] = right.gradients[step]
    expected = {f"{moment}/{name}": value for moment, named in moments.items() for name, value in named.items()}
    return any(
        (seen := observed.tensors.get(name)) is None
        or seen.shape != value.shape
        or not torch.allclose(wide(seen), wide(value), tolerance, tolerance)
        for observed in trial.observations
        for name, value in expected.items()
    )


def _beyond(scenario: Scenario, kind: Kind) -> str:
    """Say what a flat script has no lines for, if anything."""
    if scenario.simulated:
        return "simulated ranks and their schedule"
    if not all(map(scenario.trains, range(scenario.steps))):
        return "steps without gradients"
    if not is_explicit(scenario.model):
        return "layers of its own"
    if kind == "engine" and scenario.optimizer.groups:
        return "parameter groups"
    shown = () if kind == "engine" else _SHOWN
    later = [type(event).__name__ for event in scenario.schedule if not isinstance(event, shown)]
    return f"what happens between steps ({later[0]})" if later else ""


def _data(scenario: Scenario, given: list[Tensors]) -> dict[str, list[Tensors]]:
    """Return what the script has as literal data: what each rank is given, once if it is the same for all."""
    inputs = [RankInputs.from_names(own) for own in given]
    batches = [
        {f"{kind}{number}": t for number, pair in enumerate(own.batches) for kind, t in zip("xy", pair, strict=True)}
        for own in inputs
    ]
    one = scenario.replicated or scenario.averaged
    return {
        "WEIGHTS": [own.weights for own in inputs[: 1 if one else None]],
        "BATCHES": batches[: 1 if scenario.replicated else None],
    }


def _params(s: Any, o: Any) -> str:
    """Return what the optimizer is given."""
    if o.groups:
        return f"[{', '.join(_group(group, o) for group in o.groups)}]"
    if later := [name for event in s.schedule if isinstance(event, AddGroup) for name in event.group.parameters]:
        return f"[p for name, p in named.items() if name not in {later}]"
    return "iter(named.values())"


def _group(group: Any, o: Any) -> str:
    params = f"named[name] for name in {group.parameters!r}"
    return f'{{"params": {f"({params})" if o.generators else f"[{params}]"}, **{group.options!r}}}'


def _event_lines(event: Event, o: Any) -> Iterator[str]:
    """Yield the statements that carry out an event, in the loop over steps."""
    match event:
        case SetOption():
            yield f"if step == {event.step}:"
            those = "optimizer.param_groups" if event.group < 0 else f"[optimizer.param_groups[{event.group}]]"
            yield f"    for group in {those}: group[{event.option!r}] = {event.value!r}"
        case AddGroup():
            yield f"if step == {event.step}: optimizer.add_param_group({_group(event.group, o)})"
        case Unfreeze() | Freeze():
            yield f"for name in {event.parameters!r} if step == {event.step} else ():"
            yield f"    named[name].requires_grad_({isinstance(event, Unfreeze)})"
            if isinstance(event, Freeze) and event.drops:
                yield "    named[name].grad = None"


def _scheduler(event: Event, steps: int) -> str:
    """Return the call that makes an event's scheduler, if it is about one."""
    match event:
        case Decay():
            return f"ExponentialLR(optimizer, {event.gamma})"
        case OneCycle():
            return f"OneCycleLR(optimizer, {event.max_lr}, {steps + 1}, cycle_momentum={event.momentum})"
        case _:
            return ""
