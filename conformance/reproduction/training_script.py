"""Writes a standalone script that shows a failure with torch and the submission alone."""

import inspect
import math
from dataclasses import dataclass
from typing import Any

from conformance.checks.traffic import expected_exchanges, longest_flags, model_bytes, most_bytes
from conformance.components.registry import COMPONENTS
from conformance.components.sharded_optimizer.state import halves, largest_share, padding
from conformance.components.wrapper.overlap import late_exchanges
from conformance.oracle.remembered import right_training
from conformance.oracle.training import PER_RANK
from conformance.reproduction.script import Script
from conformance.scenarios.layers import Again, Dtype, Embedding, Linear, Magnitude, layer_as_code
from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Event,
    Freeze,
    LoadWeights,
    OneCycle,
    Save,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)
from conformance.workload.models import GAIN, GAIN_OF_NONE
from conformance.workload.modules import AddedEmbedding, ComplexMagnitude, ResidualLinear, SelfAttention, SpreadConv2d
from conformance.workload.numbers import FAR, WEIGHT_SCALE

_BLOCKS = (SpreadConv2d, AddedEmbedding, SelfAttention, ResidualLinear, ComplexMagnitude)
_ACTIVATIONS = {"tanh": "torch.tanh", "gelu": "nn.functional.gelu", "relu": "torch.relu"}
# Between one process's rounding, which steps carry on, and what a known mistake changes in a drawn scenario.
_TOLERANCES: dict[Dtype, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "bfloat16": 0.1,
    "float16": 0.02,
    "complex128": 1e-9,
}
_MANY = 10_000  # elements; of a larger tensor a script prints one
# Methods of a module that spare complex numbers, as `to(dtype)` does not.
_CASTS = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "half"}


@dataclass(frozen=True, kw_only=True)
class Reproduction(Script):
    """A script that trains with the submission, and in one process beside it.

    Attributes:
        scenario: the scenario on which the check failed.
    """

    scenario: Scenario

    def text(self) -> str:
        """Return the script."""
        wanted = COMPONENTS[self.component].contract
        return self.render(
            "script.py.jinja",
            seed=self.seed,
            s=self.scenario,
            m=self.scenario.model,
            o=self.scenario.optimizer,
            shows=self.check.shows,
            watches=self.check.shows in {"overlap", "collectives", "volume", "lazy"},
            weight_scale=WEIGHT_SCALE,
            far=FAR,
            optimizer_component=wanted.kind == "optimizer",
            get=wanted.get.name,
            after_backward=wanted.after_backward.name if wanted.after_backward else "",
            batch_start=wanted.batch_start.name if wanted.batch_start else "",
            bucket=f", {self.scenario.bucket_size_mb!r}" if len(wanted.get.parameters) > 1 else "",
            clear=self.scenario.cleared_by,
            samples=sum(map(self.scenario.batch_of, range(self.scenario.world_size))),
            torchrun=True,
            world_size=self.scenario.world_size,
            verdict="differences(in_one_process(), ranks)",
            floor=1000,
            by_dtype=_by_dtype(self.scenario) if wanted.kind == "optimizer" else "",
            **_about_model(self.scenario),
            **_about_schedule(self.scenario),
            **_about_expectations(self),
        )


def _about_model(scenario: Scenario) -> dict[str, Any]:
    spec = scenario.model
    layers = [layer_as_code(layer, width) for layer, width in zip(spec.layers, spec.widths, strict=False)]
    blocks = [block for block in _BLOCKS if any(line.startswith(block.__name__) for line in layers)]
    gain = None if spec.gain_none else GAIN
    odd = spec.gapped if spec.transposed is None else spec.transposed
    shape = spec.shapes[f"layers.{odd}.weight"] if odd is not None else ()
    return {
        "layers": ", ".join(layers),
        "blocks": [inspect.getsource(block).rstrip() for block in blocks],
        "again": {index: layer.layer for index, layer in enumerate(spec.layers) if isinstance(layer, Again)},
        "cast": _CASTS[spec.dtype],
        "dtypes": {
            index: layer.dtype for index, layer in enumerate(spec.layers) if isinstance(layer, Linear) and layer.dtype
        },
        "complex": any(isinstance(layer, Magnitude) for layer in spec.layers),
        "sparse": any(isinstance(layer, Embedding) and layer.sparse for layer in spec.layers),
        "outputs": spec.widths[-1],
        "activation": _ACTIVATIONS[spec.activation],
        "branches": sum(name.startswith("branches.") for name in spec.shapes),
        "odd_shape": shape,
        "gain": f", gain={gain}" if spec.keyword else f", {gain}" if spec.positional else "",
        "nested_gain": GAIN,
        "gain_of_none": GAIN_OF_NONE,
        "mixed": spec.mixed,
        "is_large": any(math.prod(shape) > _MANY for shape in spec.shapes.values()),
        "tolerance": max(_TOLERANCES[dtype] for dtype in (spec.dtype, *spec.dtypes.values())),
        "per_rank": spec.branch in PER_RANK,
        "first_differs": spec.branch == "used_in_first_micro_batch",
        "steps_differ": spec.branch in {"used_in_even_steps", "used_in_odd_steps", "used_in_turn"},
    }


def _by_dtype(scenario: Scenario) -> str:
    """Return the dtypes of parameters with their tolerances, where ranks get equal gradients of several; or nothing."""
    dtypes = sorted({*scenario.model.dtypes.values()})
    pairs = ", ".join(f"(torch.{dtype}, {_TOLERANCES[dtype]})" for dtype in dtypes)
    return f"({pairs})" if scenario.replicated and len(dtypes) > 1 else ""


def _about_schedule(scenario: Scenario) -> dict[str, Any]:
    return {
        "added": [
            name for event in scenario.schedule if isinstance(event, AddGroup) for name in event.group.parameters
        ],
        "events": [
            line for event in scenario.schedule for line in _lines(event, generators=scenario.optimizer.generators)
        ],
        "groups": scenario.optimizer.groups,
        "loads_weights": any(isinstance(event, LoadWeights) for event in scenario.schedule),
        "saves": any(isinstance(event, SaveAndLoad | Save) for event in scenario.schedule),
        "scheduler": next((made for event in scenario.schedule if (made := _scheduler(event))), ""),
    }


def _scheduler(event: Event) -> str:
    """Return the call that makes an event's scheduler, if it is about one."""
    match event:
        case Decay():
            return f"ExponentialLR(optimizer, {event.gamma})"
        case OneCycle():
            return f"OneCycleLR(optimizer, {event.max_lr}, STEPS + 1, cycle_momentum={event.momentum})"
        case _:
            return ""


def _lines(event: Event, *, generators: bool) -> list[str]:
    """Return the statements that carry out an event, in the loop over steps."""
    match event:
        case SetOption():
            change = f"group[{event.option!r}] = {event.value!r}"
            those = "optimizer.param_groups" if event.group < 0 else f"[optimizer.param_groups[{event.group}]]"
            return [f"if step == {event.step}:", f"    for group in {those}:", f"        {change}"]
        case AddGroup():
            params = f"named[name] for name in {event.group.parameters!r}"
            given = f'"params": {f"({params})" if generators else f"[{params}]"}, **{event.group.options!r}'
            return [f"if step == {event.step}:", f"    optimizer.add_param_group({{{given}}})"]
        case Unfreeze() | Freeze():
            change = f"    named[name].requires_grad_({isinstance(event, Unfreeze)})"
            drop = ["    named[name].grad = None"] if isinstance(event, Freeze) and event.drops else []
            return [f"for name in {event.parameters!r} if step == {event.step} else ():", change, *drop]
        case SaveAndLoad():
            return [
                f"if step == {event.step}:",
                "    saved = through_a_file(state_of(optimizer))",
                "    before, groups = repr(saved), without_parameters(optimizer)",
                "    take_hooks_off(named.values())  # as in a new process",
                "    optimizer = make_optimizer(named, make)",
                "    optimizer.load_state_dict(saved)",
                '    seen["altered"] = before != repr(saved)',
                '    seen["lost"] = groups != without_parameters(optimizer)',
            ]
        case Save():
            return [f"if step == {event.step}:", "    state_of(optimizer)"]
        case LoadWeights():
            return [f"if step == {event.step}:", "    wrapped.load_state_dict(weights)"]
        case _:
            return []


def _about_expectations(wanted: Reproduction) -> dict[str, Any]:
    """Return the numbers that a check expects besides those of training."""
    check, scenario = wanted.check, wanted.scenario
    parameters, dtypes = len(scenario.model.trainable), set(scenario.model.dtypes.values())
    fewest, most = {
        "one_collective_per_dtype": (1, 1),
        "one_collective_per_dtype[two_dtypes]": (1, len(dtypes)),
        "one_collective_per_parameter": (parameters, parameters),
    }.get(check.id, expected_exchanges(scenario))
    sizes = right_training(scenario, wanted.seed).state_bytes if check.shows == "state" else {}
    full, filling = sum(sizes.values()), padding(scenario, sizes)
    parts = halves(scenario) if check.id.startswith("state_is_balanced") else 0
    return {
        "fewest": fewest,
        "most": most,
        "model_dtypes": ", ".join(f"torch.{dtype}" for dtype in sorted(dtypes)),
        "late": late_exchanges(scenario),
        "most_bytes": most_bytes(scenario, ""),
        "all_bytes": model_bytes(scenario),
        "weighs_forward": check.id == "sent_once" and not scenario.replicated,
        "most_scattered": most_bytes(scenario, "reduce_scatter"),
        "flags": parameters if longest_flags(scenario, scenario.model.dtype) else 0,
        "freezes_all": False,
        "full": full,
        "padding": filling,
        "most_state": round(largest_share(scenario, sizes, parts)) if parts else full + filling,
    }
