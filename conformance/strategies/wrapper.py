"""Strategies for wrappers: plain training, and one unusual feature at a time on top of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.scenarios.layers import BYTES, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Event, Scenario
from conformance.strategies.building_blocks import (
    NARROW_RATES,
    Bounds,
    Draw,
    Drawer,
    between_steps,
    broadened,
    called,
    decaying,
    draw_convolution,
    draw_model,
    draw_optimizer,
    draw_other_layers,
    draw_values,
    having,
    narrow,
)

_MIB = 2**20
_BUCKETS = (1.0, 25.0, 64 / _MIB, 8 / _MIB, 200 / _MIB)  # a bucket holds one element at least


def draw_wrapped(draw: Draw, bounds: Bounds, model: ModelSpec, **fixed: Any) -> Scenario:
    """Draw the rest of a scenario for a wrapper around `model`."""
    drawn = Scenario(
        world_size=draw(st.integers(2, bounds.world_size)),
        model=model,
        optimizer=draw_optimizer(draw),
        steps=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 3)),
        bucket_size_mb=_draw_bucket_size(draw, bounds),
        seed=draw(st.integers(0, 99)),
    )
    return replace(drawn, **fixed)


def _draw_bucket_size(draw: Draw, bounds: Bounds) -> float:
    """Draw a size for every wrapper: all of them are held to the same scenarios, but for this size."""
    size: float = draw(st.sampled_from(_BUCKETS))
    return size if bounds.bucketed else 1.0


def wrapped(
    *,
    layers: tuple[int, int] = (1, 3),
    of: Callable[[Draw], ModelSpec] | None = None,
    model: Mapping[str, Any] | None = None,
    event: Callable[[int], Event] | None = None,
    **is_: Any,
) -> Drawer:
    """Return a strategy of wrapped models that are trained.

    Args:
        layers: the least and the greatest number of layers of a perceptron.
        of: draws another model.
        model: attributes of the model: values, or strategies of values.
        event: makes, for a step, what happens between that step and the one before.
        is_: attributes of the scenario: values, or strategies of values.
    """

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        spec = of(draw) if of else draw_model(draw, layers=layers)
        spec = replace(spec, **draw_values(draw, model or {}))
        return between_steps(draw, draw_wrapped(draw, bounds, spec, **draw_values(draw, is_)), event)

    return called(drawn, "wrapped", (layers, of and of.__qualname__, model, event, is_))


def draw_frozen(draw: Draw, model: ModelSpec) -> ModelSpec:
    """Freeze at least one parameter, and leave at least one to train."""
    names = tuple(model.shapes)
    chosen = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    return replace(model, frozen=tuple(name for name in names if name in chosen))


plain = wrapped()
SMALL = (1, 2)


def widened(scenario: Scenario) -> Scenario:
    """Return a plain scenario with four layers of different sizes, whose gradients take several buckets."""
    model = ModelSpec(2, (Linear(3), Linear(1), Linear(4), Linear(2)), dtype=scenario.model.dtype)
    return replace(scenario, model=model, bucket_size_mb=9 * BYTES[model.dtype] / _MIB, steps=max(2, scenario.steps))


on_one_rank = narrow(plain, world_size=1)
in_float32 = narrow(plain, "float32")
in_bfloat16 = narrow(plain, "bfloat16")
PLAIN = (plain, on_one_rank, in_float32, in_bfloat16)


@st.composite
def in_mixed_dtypes(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer computes in float32, the others in float64; a missing wait gives NaN."""
    model = draw_model(draw, layers=(2, 3))
    odd = draw(st.integers(0, len(model.layers) - 1))
    drawn = draw_wrapped(draw, bounds, model.with_dtype(odd, "float32"), gated=True)
    return replace(drawn, optimizer=draw_optimizer(draw, NARROW_RATES))


@st.composite
def in_two_dtypes(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer computes in bfloat16, and the others in float64; all are of many KiB."""
    model = broadened(draw_model(draw, layers=(2, 3)))
    odd = draw(st.integers(0, len(model.layers) - 1))
    return draw_wrapped(draw, bounds, model.with_dtype(odd, "bfloat16"))


@st.composite
def of_alternating_dtypes(draw: Draw, bounds: Bounds) -> Scenario:
    """Three layers of many KiB, the middle one of which computes in bfloat16; one unbounded bucket."""
    model = broadened(draw_model(draw, layers=(3, 3)))
    return draw_wrapped(draw, bounds, model.with_dtype(1, "bfloat16"), bucket_size_mb=None)


@st.composite
def with_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Some parameters do not require gradients; weight decay would move them if they were given one."""
    model = draw_frozen(draw, draw_model(draw, layers=(1, 3), biases=True))
    return decaying(draw_wrapped(draw, bounds, model))


def draw_tied(draw: Draw) -> ModelSpec:
    """Draw a perceptron of two or three layers, the first two of which share their weight."""
    width = draw(st.integers(1, 3))
    last = (Linear(draw(st.integers(1, 3)), draw(st.booleans())),) if draw(st.booleans()) else ()
    shared = tuple(Linear(width, draw(st.booleans())) for _ in range(2))
    return ModelSpec(width, shared + last, tied=(0, 1))


evaluating = having(plain, evaluates=True)


def draw_transposed(draw: Draw) -> ModelSpec:
    """Draw two layers, the first of which has a weight that is stored transposed: it is dense, but not contiguous."""
    sizes = st.integers(2, 4)
    layers = (Linear(draw(sizes), draw(st.booleans())), Linear(draw(st.integers(1, 3)), draw(st.booleans())))
    return ModelSpec(draw(sizes), layers, transposed=0)


with_tied = wrapped(of=draw_tied)
with_transposed = wrapped(of=draw_transposed)
with_convolution = wrapped(of=draw_convolution)
of_other_layers = wrapped(of=draw_other_layers)
clipping = wrapped(clip=st.sampled_from((0.5, 0.1)))
with_keyword = wrapped(
    layers=SMALL, steps=1, model={"keyword": True, "by_name": st.booleans(), "gain_none": st.booleans()}
)
