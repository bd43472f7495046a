"""Strategies for wrappers whose communication is looked at: when it starts, in how many collectives, and how large."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.scenarios.layers import BYTES, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Group, Scenario
from conformance.strategies.building_blocks import Bounds, Draw, broadened, draw_model, narrowed
from conformance.strategies.wrapper import draw_tied, draw_wrapped

_MIB = 2**20
_BYTES = 8
_DEEP, _FEW = 4, 2
_ALL = 1.1  # holds all also where MB are taken for 10^6 bytes


@st.composite
def deep(draw: Draw, bounds: Bounds) -> Scenario:
    """At least three layers; buckets, if any, smaller than every parameter; steps enough to settle; waits are seen."""
    model = draw_model(draw, layers=(3, _DEEP), widest=3)
    drawn = draw_wrapped(draw, bounds, model, steps=3, bucket_size_mb=1.0, gated=True)
    return _in_small_buckets(drawn) if bounds.bucketed else drawn


@st.composite
def deep_or_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """The same; in most of them one parameter behind the first layer's does not train, in half two layers share one.

    Gradients are cleared in either way, and have 64 bits or 16.
    """
    drawn: Scenario = draw(deep(bounds))
    if draw(st.booleans()):
        width = draw(st.integers(1, 3))
        square = tuple(Linear(width, draw(st.booleans())) for _ in range(5))
        drawn = replace(drawn, model=replace(drawn.model, inputs=width, layers=square, tied=(3, 4)))
    drawn = _of_64_or_16_bits(draw, drawn)
    drawn = _in_small_buckets(drawn) if bounds.bucketed else drawn
    return _frozen_and_cleared(draw, drawn)


def _of_64_or_16_bits(draw: Draw, drawn: Scenario) -> Scenario:
    return narrowed(draw, drawn, draw(st.sampled_from(("float64", "bfloat16"))))


def _frozen_and_cleared(draw: Draw, drawn: Scenario) -> Scenario:
    """Freeze one parameter or none, and so that two behind the first layer's still train: there is what to overlap.

    Clear gradients in either way.
    """
    kept = {f"layers.{layer}.weight" for layer in drawn.model.tied or ()}
    behind = [name for name in drawn.model.shapes if not name.startswith("layers.0.") and name not in kept]
    frozen = draw(st.sampled_from(((), *((name,) for name in behind)))) if len(behind) > _FEW else ()
    return replace(drawn, model=replace(drawn.model, frozen=frozen), set_to_none=draw(st.booleans()))


def _in_small_buckets(drawn: Scenario) -> Scenario:
    """Give buckets half the size of the smallest parameter, and of one element at least."""
    elements = max(1, min(map(math.prod, drawn.model.shapes.values())) / 2)
    return replace(drawn, bucket_size_mb=BYTES[drawn.model.dtype] * elements / _MIB)


@st.composite
def deep_and_broad(draw: Draw, bounds: Bounds) -> Scenario:
    """The same with layers of many KiB."""
    drawn: Scenario = draw(deep(bounds))
    drawn = replace(drawn, model=broadened(drawn.model))
    return _in_small_buckets(drawn) if bounds.bucketed else drawn


@st.composite
def broad_in_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """The same; in most of them the optimizer has two groups of parameters."""
    drawn: Scenario = draw(deep_and_broad(bounds))
    names = tuple(drawn.model.shapes)
    first = draw(st.integers(0, len(names) - 1))
    groups = (Group(names[:first], {}), Group(names[first:], {})) if first else ()
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


@st.composite
def broad_or_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Layers of many KiB; in some scenarios one behind the first layer does not train; cleared in either way.

    Gradients have 64 bits or 16.
    """
    return _frozen_and_cleared(draw, _of_64_or_16_bits(draw, draw(deep_and_broad(bounds))))


@st.composite
def broad_or_tied(draw: Draw, bounds: Bounds) -> Scenario:
    """Layers of many KiB; in half of the scenarios two of them share their weight."""
    drawn: Scenario = draw(deep_and_broad(bounds))
    if draw(st.booleans()):
        return drawn
    drawn = replace(drawn, model=broadened(draw_tied(draw)))
    return _in_small_buckets(drawn) if bounds.bucketed else drawn


@st.composite
def with_bucket_size(draw: Draw, bounds: Bounds) -> Scenario:
    """At least three layers, and a bucket that holds all of them, or a fourth; or half of six, or a third of twelve.

    All have many KiB: flags and alignment weigh little next to them.
    """
    model = draw_model(draw, layers=(3, _DEEP), widest=4)
    width = draw(st.integers(2, 4))
    six, twelve = (ModelSpec(width, (Linear(width, bias=False),) * count) for count in (6, 12))
    model, share = draw(st.sampled_from(((model, _ALL), (model, 1 / 4), (six, 1 / 2), (twelve, 1 / 3))))
    model = broadened(model)
    total = _BYTES * sum(map(math.prod, model.shapes.values()))
    return draw_wrapped(draw, bounds, model, steps=2, bucket_size_mb=share * total / _MIB)


@st.composite
def with_frozen_between(draw: Draw, bounds: Bounds) -> Scenario:
    """Twelve layers of many KiB, of which every third trains, and a bucket that holds all of these."""
    width, first = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    model = broadened(ModelSpec(width, (Linear(width, bias=False),) * 12))
    frozen = tuple(name for at, name in enumerate(model.shapes) if at % 3 != first)
    model = replace(model, frozen=frozen)
    total = _BYTES * sum(math.prod(model.shapes[name]) for name in model.trainable)
    return draw_wrapped(draw, bounds, model, steps=2, bucket_size_mb=_ALL * total / _MIB)


@st.composite
def with_one_bucket(draw: Draw, bounds: Bounds) -> Scenario:
    """No bucket size: one unbounded bucket, for layers of many KiB."""
    return draw_wrapped(draw, bounds, broadened(draw_model(draw, layers=(1, _DEEP))), steps=2, bucket_size_mb=None)
