"""Strategies for wrappers: plain training, and one unusual feature at a time on top of it; at the end, many at once."""

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.scenarios.layers import BYTES, Embedding, Layer, Linear, Magnitude, Residual
from conformance.scenarios.model_spec import Branch, ModelSpec
from conformance.scenarios.scenario import (
    MIB,
    AddGroup,
    Decay,
    Event,
    Freeze,
    Group,
    LoadWeights,
    OptimizerSpec,
    Scenario,
    SetOption,
    Unfreeze,
)
from conformance.strategies import building_blocks as blocks
from conformance.strategies.building_blocks import (
    NARROW_RATES,
    RATES,
    Bounds,
    Draw,
    Drawer,
    decaying,
    freezable,
    having,
    mapped,
    narrow,
    perceptrons,
)

Models = st.SearchStrategy[ModelSpec]
SMALL = (1, 2)
_BUCKETS = st.sampled_from((1.0, 25.0, 64 / MIB, 8 / MIB, 200 / MIB))  # a bucket holds one element at least


def draw_wrapped(draw: Draw, bounds: Bounds, model: ModelSpec, **attributes: Any) -> Scenario:
    """Draw a scenario for a wrapper around `model`; attributes are values, or strategies of values.

    A bucket size is drawn for every wrapper: the scenarios of all wrappers differ in nothing else.
    """
    drawn = {
        "world_size": st.integers(2, bounds.world_size),
        "optimizer": blocks.optimizers(),
        "steps": st.integers(1, 3),
        "batch": st.integers(1, 3),
        "bucket_size_mb": _BUCKETS.map(lambda size: size if bounds.bucketed else 1.0),
        "seed": blocks.SEEDS,
    }
    return Scenario(model=model, **blocks.draw_values(draw, drawn | attributes))


def wrapped(
    *,
    layers: tuple[int, int] = (1, 3),
    of: Models | None = None,
    model: dict[str, Any] | None = None,
    **attributes: Any,
) -> Drawer:
    """Return a strategy of wrapped models that are trained.

    Args:
        layers: the least and the greatest number of layers of a perceptron.
        of: a strategy of other models.
        model: attributes of the model: values, or strategies of values.
        attributes: those of the scenario: values, or strategies of values.
    """

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        spec = replace(draw(perceptrons(layers) if of is None else of), **blocks.draw_values(draw, model or {}))
        return draw_wrapped(draw, bounds, spec, **attributes)

    return blocks.called(drawn, "wrapped", (layers, of, model, attributes))


plain = wrapped()
on_one_rank = narrow(plain, world_size=1)
in_float32 = narrow(plain, "float32")
in_bfloat16 = narrow(plain, "bfloat16")
PLAIN = (plain, on_one_rank, in_float32, in_bfloat16)


_DECISIONS = 500  # of a schedule, at most: a run of 3 ranks has about so many
_OPTIONS = 3  # of a decision that are drawn; where there are fewer, the last one counts


def in_a_large_world(bounds: Bounds) -> st.SearchStrategy[Scenario]:
    """Return a strategy of one scenario of 64 simulated ranks."""
    model = ModelSpec(2, (Linear(3), Linear(2)))
    size = 9 * BYTES[model.dtype] / MIB if bounds.bucketed else 1.0
    return st.just(Scenario(64, model, steps=2, bucket_size_mb=size, simulated=True))


def in_every_order(bounds: Bounds) -> Scenario:
    """Return a scenario of 3 simulated ranks with three buckets, small enough to run it in every order."""
    model = ModelSpec(2, (Linear(3), Linear(2)))
    size = 8 * BYTES[model.dtype] / MIB if bounds.bucketed else 1.0
    return Scenario(3, model, steps=2, bucket_size_mb=size, simulated=True)


def in_any_order(bounds: Bounds) -> st.SearchStrategy[Scenario]:
    """Return a strategy of scenarios of 3 simulated ranks that run, and get their results, in any order."""
    scenario = replace(widened(Scenario(3)), simulated=True)
    scenario = scenario if bounds.bucketed else replace(scenario, bucket_size_mb=1.0)
    return st.builds(_order, st.integers(0, _DECISIONS), st.integers(0, 2**16)).map(
        lambda order: replace(scenario, order=order)
    )


def _order(decisions: int, seed: int) -> tuple[int, ...]:
    """Return so many choices of a schedule; those that follow are the default."""
    return tuple(random.Random(seed).choices(range(_OPTIONS), k=decisions))  # noqa: S311


def widened(scenario: Scenario) -> Scenario:
    """Return a plain scenario with four layers of different sizes, whose gradients take several buckets."""
    model = ModelSpec(2, (Linear(3), Linear(1), Linear(4), Linear(2)), dtype=scenario.model.dtype)
    return replace(scenario, model=model, bucket_size_mb=9 * BYTES[model.dtype] / MIB, steps=max(2, scenario.steps))


# If the wrapper misses a wait, gradients are NaN.
in_mixed_dtypes = wrapped(
    of=blocks.of_two_dtypes(perceptrons((2, 3)), "float32"), gated=True, optimizer=blocks.optimizers(NARROW_RATES)
)
in_two_dtypes = wrapped(of=blocks.of_two_dtypes(perceptrons((2, 3)).map(blocks.broadened), "bfloat16"))
# The middle one of three layers has another dtype; there is one unbounded bucket.
of_alternating_dtypes = wrapped(
    of=blocks.of_two_dtypes(perceptrons((3, 3)).map(blocks.broadened), "bfloat16", odd=1), bucket_size_mb=None
)
with_frozen = mapped(wrapped(of=blocks.frozen(perceptrons(biases=True))), decaying)
with_tied = wrapped(of=blocks.tied())
with_transposed = wrapped(of=blocks.transposed())
with_gaps = wrapped(of=blocks.transposed(), model={"transposed": None, "gapped": 0})
with_convolution = wrapped(of=blocks.convolutions())
of_other_layers = wrapped(of=blocks.other_layers())
evaluating = having(plain, evaluates=True)
clipping = wrapped(clip=st.sampled_from((0.5, 0.1)))
with_keyword = wrapped(
    layers=SMALL, steps=1, model={"keyword": True, "by_name": st.booleans(), "gain_none": st.booleans()}
)
accumulating = wrapped(micro_batches=st.integers(2, 3))
under_no_sync = having(accumulating, no_sync=True)
aborting = wrapped(layers=(2, 3), steps=st.integers(2, 3), aborts=1)
aborting_at_first = having(aborting, aborts=0)
in_another_order = wrapped(of=blocks.registered_in_another_order())
computing_twice = wrapped(of=blocks.used_twice(), model={"recomputed": True, "reentrant": True})
converted_to_float64 = having(plain, converted="float64")
converted_to_channels_last = wrapped(of=blocks.contiguous_convolutions(), converted="channels_last")
adding_positions = wrapped(of=blocks.with_position(), batch=1)
loading = wrapped(steps=st.integers(2, 3), schedule=(LoadWeights(1),))
# Enough steps for a count not to grow in every step by chance, if a thread frees its tensors late.
lasting = wrapped(layers=SMALL, steps=st.sampled_from((7, 12)), evaluates=st.booleans(), counted=True)


@st.composite
def of_many_parameters(draw: Draw, bounds: Bounds) -> Scenario:
    """More than a hundred parameters, of residual layers, which keep the size of gradients."""
    first, many = Linear(draw(st.integers(1, 2))), draw(st.integers(50, 70))
    layers: tuple[Layer, ...] = (first, *(Residual() for _ in range(many)), Linear(1))
    return draw_wrapped(draw, bounds, ModelSpec(draw(st.integers(1, 2)), layers), steps=1)


@st.composite
def with_large(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight has 1025 times 1024 elements. Little else is drawn, since every run moves megabytes."""
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
    """One layer is an embedding whose gradient is sparse. SGD without weight decay takes such gradients."""
    table = Embedding(draw(st.integers(2, 4)), sparse=True)
    model = ModelSpec(1, (Linear(draw(st.integers(1, 3))), table, Linear(draw(st.integers(1, 2)))))
    options = {"lr": draw(st.sampled_from(RATES)), "momentum": draw(st.sampled_from((0.0, 0.9)))}
    return draw_wrapped(draw, bounds, model, optimizer=OptimizerSpec("SGD", {**options}))


@st.composite
def at_the_end_of_float16(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer in float16, whose bias alone trains; its gradients are as large as float16 can hold."""
    layer = Linear(draw(st.integers(1, 3)))
    model = ModelSpec(draw(st.integers(1, 3)), (layer,), frozen=("layers.0.weight",), dtype="float16")
    return draw_wrapped(draw, bounds, model, optimizer=blocks.sgd(), steps=1, large=True)


def with_branch(*branches: Branch, **attributes: Any) -> Drawer:
    """Return a strategy of models that have a second path of one of these kinds; weight decay moves all with gradients.

    If only the first micro-batch uses the path, there are two: all but the last are computed under `no_sync`.
    """
    lazily = "used_in_first_micro_batch" in branches
    kinds = {"branch": st.sampled_from(branches)}
    return mapped(wrapped(layers=SMALL, model=kinds, **{"steps": 2, "no_sync": lazily, **attributes}), decaying)


@st.composite
def freezing(draw: Draw, bounds: Bounds) -> Scenario:
    """Some parameters are frozen after the first step; or all, and nothing is left to train."""
    model = draw(perceptrons(biases=True))
    names = draw(freezable(model) | st.just(tuple(model.shapes)))
    return decaying(draw_wrapped(draw, bounds, model, steps=3, schedule=(Freeze(1, names),)))


@st.composite
def unfreezing(draw: Draw, bounds: Bounds) -> Scenario:
    """Frozen parameters begin to train after the first step; or after the second one, and had trained in the first.

    In half of the scenarios as many others are frozen at the same time.
    """
    model = draw(blocks.frozen(perceptrons(biases=True)))
    again, in_place = draw(st.booleans()), draw(st.booleans())
    if in_place:
        model = replace(model, frozen=model.frozen[: len(model.trainable)])
    step = 2 if again else 1
    events: tuple[Event, ...] = (Freeze(1, model.frozen),) if again else ()
    events += (Unfreeze(step, model.frozen),)
    events += (Freeze(step, model.trainable[: len(model.frozen)]),) if in_place else ()
    model = replace(model, frozen=()) if again else model
    return draw_wrapped(draw, bounds, model, steps=3, schedule=events)


@st.composite
def held_later(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer holds the last layer's parameters only from the second step on; they have gradients before."""
    model = draw(perceptrons((2, 3), biases=True))
    last = len(model.layers) - 1
    added = AddGroup(1, Group((f"layers.{last}.weight", f"layers.{last}.bias"), {}))
    return draw_wrapped(draw, bounds, model, steps=2, schedule=(added,))


@st.composite
def mixed(draw: Draw, bounds: Bounds) -> Scenario:
    """A model of any layers, most of what may be unusual about a model and its training, and a schedule."""
    model = draw(perceptrons((2, 3)) | blocks.convolutions() | blocks.other_layers() | blocks.tied())
    model = replace(model, scale=draw(_MOSTLY), keyword=draw(_MOSTLY))
    if model.tied is None and draw(_MOSTLY):
        model = replace(model, transposed=0)
    if len(model.shapes) > 1 and draw(_MOSTLY):
        model = replace(model, frozen=draw(freezable(model)))
    unusual = {"uneven": _MOSTLY, "evaluates": _MOSTLY, "set_to_none": st.booleans()}
    clip, changed = st.sampled_from((None, 0.5, 0.1)), SetOption(1, "lr", draw(st.sampled_from(RATES)) / 2)
    schedules = st.sampled_from(((), (Decay(0.5),), (changed,), (Decay(0.5), changed)))
    return decaying(
        draw_wrapped(draw, bounds, model, steps=st.integers(2, 3), clip=clip, schedule=schedules, **unusual)
    )


_MOSTLY = st.integers(0, 3).map(bool)
