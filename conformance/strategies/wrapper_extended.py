"""Strategies for wrappers that are held to more than the assignment asks for, one unusual feature at a time."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.scenarios.layers import Embedding, Layer, Linear, Magnitude, Residual
from conformance.scenarios.model_spec import Branch, ModelSpec
from conformance.scenarios.scenario import (
    AddGroup,
    Event,
    Freeze,
    Group,
    LoadWeights,
    OptimizerSpec,
    Options,
    Scenario,
    Unfreeze,
)
from conformance.strategies.building_blocks import (
    NARROW_RATES,
    RATES,
    Bounds,
    Draw,
    Drawer,
    called,
    decaying,
    draw_model,
    draw_sgd,
    having,
)
from conformance.strategies.communication import deep
from conformance.strategies.wrapper import SMALL, draw_frozen, draw_transposed, draw_wrapped, wrapped


@st.composite
def of_many_parameters(draw: Draw, bounds: Bounds) -> Scenario:
    """More than a hundred parameters, of residual layers, which keep the size of gradients."""
    first, many = Linear(draw(st.integers(1, 2))), draw(st.integers(50, 70))
    layers: tuple[Layer, ...] = (first, *(Residual() for _ in range(many)), Linear(1))
    return draw_wrapped(draw, bounds, ModelSpec(draw(st.integers(1, 2)), layers), steps=1)


@st.composite
def with_large(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight has 1025 times 1024 elements; little else is drawn, since every run moves megabytes."""
    model = ModelSpec(1024, (Linear(1025),), dtype="float32")
    optimizer = OptimizerSpec("SGD", {"lr": NARROW_RATES[0]})
    size = draw(st.sampled_from((1.0, 25.0))) if bounds.bucketed else 1.0
    return Scenario(model=model, optimizer=optimizer, bucket_size_mb=size)


@st.composite
def with_complex_numbers(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight is complex."""
    width = Linear(draw(st.integers(1, 3)))
    return draw_wrapped(draw, bounds, ModelSpec(draw(st.integers(1, 2)), (width, Magnitude(), Linear(1))))


@st.composite
def with_sparse_gradients(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer is an embedding whose gradient is sparse; SGD without weight decay takes such gradients."""
    table = Embedding(draw(st.integers(2, 4)), sparse=True)
    model = ModelSpec(1, (Linear(draw(st.integers(1, 3))), table, Linear(draw(st.integers(1, 2)))))
    options: Options = {"lr": draw(st.sampled_from(RATES)), "momentum": draw(st.sampled_from((0.0, 0.9)))}
    return draw_wrapped(draw, bounds, model, optimizer=OptimizerSpec("SGD", options))


@st.composite
def at_the_end_of_float16(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer in float16, of which the bias trains; its gradients are as large as float16 can hold."""
    layer = Linear(draw(st.integers(1, 3)))
    model = ModelSpec(draw(st.integers(1, 3)), (layer,), frozen=("layers.0.weight",), dtype="float16")
    return draw_wrapped(draw, bounds, model, optimizer=draw_sgd(draw), steps=1, large=True)


accumulating = wrapped(micro_batches=st.integers(2, 3))
under_no_sync = having(accumulating, no_sync=True)


def with_branch(*branches: Branch, **is_: Any) -> Drawer:
    """Return a strategy of models that have a second path of one of these kinds; weight decay moves all with gradients.

    Two micro-batches are computed under `no_sync` but for the last, where the first alone uses the path.
    """
    lazily = "used_in_first_micro_batch" in branches
    kinds = {"branch": st.sampled_from(branches)}
    drawn = wrapped(layers=SMALL, model=kinds, **{"steps": 2, "no_sync": lazily, **is_})
    return called(lambda bounds: drawn(bounds).map(decaying), drawn.__qualname__, "decaying")


@st.composite
def freezing(draw: Draw, bounds: Bounds) -> Scenario:
    """Some parameters are frozen after the first step."""
    drawn = draw_wrapped(draw, bounds, draw_model(draw, layers=(1, 3), biases=True), steps=3)
    frozen = draw_frozen(draw, drawn.model).frozen
    return decaying(replace(drawn, schedule=(Freeze(1, frozen),)))


@st.composite
def freezing_everything(draw: Draw, bounds: Bounds) -> Scenario:
    """All parameters are frozen after the first step, and nothing is left to train."""
    drawn = draw_wrapped(draw, bounds, draw_model(draw, layers=(1, 2)), steps=2)
    return decaying(replace(drawn, schedule=(Freeze(1, tuple(drawn.model.shapes)),)))


@st.composite
def unfreezing(draw: Draw, bounds: Bounds) -> Scenario:
    """Frozen parameters are let train after the first step; or after the second one, having trained in the first.

    In half of the scenarios as many others are frozen at the same time.
    """
    model = draw_frozen(draw, draw_model(draw, layers=(1, 3), biases=True))
    again, in_place = draw(st.booleans()), draw(st.booleans())
    if in_place:
        model = replace(model, frozen=model.frozen[: len(model.trainable)])
    step = 2 if again else 1
    events: tuple[Event, ...] = (Freeze(1, model.frozen),) if again else ()
    events += (Unfreeze(step, model.frozen),)
    events += (Freeze(step, model.trainable[: len(model.frozen)]),) if in_place else ()
    model = replace(model, frozen=()) if again else model
    return draw_wrapped(draw, bounds, model, steps=3, schedule=events)


aborting = wrapped(layers=(2, 3), steps=st.integers(2, 3), aborts=True)
overlapping_under_no_sync = having(deep, micro_batches=2, no_sync=True)
loading = wrapped(steps=st.integers(2, 3), event=LoadWeights)
with_gaps = wrapped(of=draw_transposed, model={"transposed": None, "gapped": 0})
# Enough steps for a count not to grow in every step by chance, where a thread frees its tensors late.
lasting = wrapped(layers=SMALL, steps=st.sampled_from((7, 12)), evaluates=st.booleans(), counted=True)


@st.composite
def held_later(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer holds the last layer's parameters only from the second step on; they have gradients before."""
    model = draw_model(draw, layers=(2, 3), biases=True)
    last = len(model.layers) - 1
    added = AddGroup(1, Group((f"layers.{last}.weight", f"layers.{last}.bias"), {}))
    return draw_wrapped(draw, bounds, model, steps=2, schedule=(added,))
