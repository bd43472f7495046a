"""Strategies for checks of a wrapper's communication: when it starts, in how many collectives, and how large."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.scenarios.layers import BYTES, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import MIB, Group, Scenario
from conformance.strategies import building_blocks as blocks
from conformance.strategies.building_blocks import NARROW_RATES, RATES, Bounds, Draw, Drawer, broadened, perceptrons
from conformance.strategies.wrapper import Models, draw_wrapped

_FEW = 2
_ALL = 1.1  # such a bucket holds all parameters, also if a wrapper takes MB for 10^6 bytes


def _in_small_buckets(models: Models, **attributes: Any) -> Drawer:
    """Return a strategy of three steps, enough to settle, in which a wrapper that misses a wait gets NaN.

    Buckets, if any, have half the size of the smallest parameter, and at least one element.
    """

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        model = draw(models)
        elements = max(1, min(map(math.prod, model.shapes.values())) / 2)
        size = BYTES[model.dtype] * elements / MIB if bounds.bucketed else 1.0
        optimizer = blocks.optimizers(NARROW_RATES if model.narrow else RATES)
        settled = {"steps": 3, "gated": True, "spoiled": True, "bucket_size_mb": size, "optimizer": optimizer}
        return draw_wrapped(draw, bounds, model, **settled, **attributes)

    return blocks.called(drawn, "in_small_buckets", (models, attributes))


@st.composite
def _in_part(draw: Draw, models: Models) -> ModelSpec:
    """The same models in 64 bits or 16, in which one parameter behind the first layer may be frozen.

    At least two behind the first layer still train, so that there is communication that can overlap.
    """
    model: ModelSpec = draw(models)
    shared = {f"layers.{layer}.weight" for layer in model.tied or ()}
    behind = [name for name in model.shapes if not name.startswith("layers.0.") and name not in shared]
    frozen = draw(st.sampled_from(((), *((name,) for name in behind)))) if len(behind) > _FEW else ()
    return replace(model, frozen=frozen, dtype=draw(st.sampled_from(("float64", "bfloat16"))))


@st.composite
def _ending_in_tied(draw: Draw) -> ModelSpec:
    """Five layers of one width, the last two of which share their weight."""
    width = draw(st.integers(1, 3))
    return ModelSpec(width, tuple(Linear(width, draw(st.booleans())) for _ in range(5)), tied=(3, 4))


_DEEP = perceptrons((3, 4), widest=3)
_BROAD = _DEEP.map(broadened)
deep = _in_small_buckets(_DEEP)
deep_or_frozen = _in_small_buckets(_in_part(_DEEP | _ending_in_tied()), set_to_none=st.booleans())
overlapping_under_no_sync = blocks.having(deep, micro_batches=2, no_sync=True)
broad_or_frozen = _in_small_buckets(_in_part(_BROAD), set_to_none=st.booleans())
broad_or_tied = _in_small_buckets(_BROAD | blocks.tied().map(broadened))


@st.composite
def broad_in_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Layers of many KiB; in most scenarios the optimizer has two groups of parameters."""
    drawn: Scenario = draw(_in_small_buckets(_BROAD)(bounds))
    names = tuple(drawn.model.shapes)
    first = draw(st.integers(0, len(names) - 1))
    groups = (Group(names[:first], {}), Group(names[first:], {})) if first else ()
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


def _draw_bucket_for(draw: Draw, bounds: Bounds, model: ModelSpec, share: float) -> Scenario:
    """Draw a scenario in which a bucket has this share of the bytes of all parameters that train."""
    total = BYTES["float64"] * sum(math.prod(model.shapes[name]) for name in model.trainable)
    return draw_wrapped(draw, bounds, model, steps=2, bucket_size_mb=share * total / MIB)


def _with_bucket(models: Models, share: float) -> Drawer:
    """Return a strategy of layers of many KiB, beside which flags and alignment weigh little, and a bucket for some."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        return _draw_bucket_for(draw, bounds, broadened(draw(models)), share)

    return blocks.called(drawn, "with_bucket", (models, share))


@st.composite
def _alike(draw: Draw, layers: int) -> ModelSpec:
    width = draw(st.integers(2, 4))
    return ModelSpec(width, (Linear(width, bias=False),) * layers)


with_bucket_size = blocks.one_of(
    _with_bucket(perceptrons((3, 4)), _ALL),
    _with_bucket(perceptrons((3, 4)), 1 / 4),
    _with_bucket(_alike(6), 1 / 2),
    _with_bucket(_alike(12), 1 / 3),
)


@st.composite
def with_frozen_between(draw: Draw, bounds: Bounds) -> Scenario:
    """Twelve layers of many KiB, of which every third trains, and a bucket that holds all of these."""
    width, first = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    model = broadened(ModelSpec(width, (Linear(width, bias=False),) * 12))
    frozen = tuple(name for at, name in enumerate(model.shapes) if at % 3 != first)
    return _draw_bucket_for(draw, bounds, replace(model, frozen=frozen), _ALL)


@st.composite
def with_one_bucket(draw: Draw, bounds: Bounds) -> Scenario:
    """No bucket size: one unbounded bucket, for layers of many KiB."""
    return draw_wrapped(draw, bounds, broadened(draw(perceptrons((1, 4)))), steps=2, bucket_size_mb=None)
