"""Strategies for wrappers: plain training, and one unusual feature at a time on top of it."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.scenarios.layers import BYTES, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Scenario
from conformance.strategies.building_blocks import (
    DTYPES,
    NARROW_RATES,
    Bounds,
    Draw,
    Drawer,
    broadened,
    called,
    decaying,
    draw_convolution,
    draw_model,
    draw_optimizer,
    draw_other_layers,
    having,
    narrowed,
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
    steps: tuple[int, int] = (1, 3),
    model: dict[str, Any] | None = None,
    **is_: Any,
) -> Drawer:
    """Return a strategy of perceptrons that are trained.

    Args:
        layers: the least and the greatest number.
        steps: likewise.
        model: attributes of the model that are not drawn.
        is_: attributes of the scenario that are not drawn.
    """

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        spec = replace(draw_model(draw, layers=layers), **(model or {}))
        return draw_wrapped(draw, bounds, spec, steps=draw(st.integers(*steps)), **is_)

    return called(drawn, "wrapped", (layers, steps, model, is_))


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


@st.composite
def on_one_rank(draw: Draw, bounds: Bounds) -> Scenario:
    """Plain training in a world of one, in any dtype."""
    drawn = draw_wrapped(draw, bounds, draw_model(draw), world_size=1)
    return narrowed(draw, drawn, draw(st.sampled_from(DTYPES)))


@st.composite
def in_float32(draw: Draw, bounds: Bounds) -> Scenario:
    """Plain training in float32."""
    return narrowed(draw, draw(plain(bounds)), "float32")


@st.composite
def in_bfloat16(draw: Draw, bounds: Bounds) -> Scenario:
    """Plain training in bfloat16."""
    return narrowed(draw, draw(plain(bounds)), "bfloat16")


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


@st.composite
def with_tied(draw: Draw, bounds: Bounds) -> Scenario:
    """Two layers share their weight."""
    return draw_wrapped(draw, bounds, draw_tied(draw))


def draw_tied(draw: Draw) -> ModelSpec:
    """Draw a perceptron of two or three layers, the first two of which share their weight."""
    width = draw(st.integers(1, 3))
    last = (Linear(draw(st.integers(1, 3)), draw(st.booleans())),) if draw(st.booleans()) else ()
    shared = tuple(Linear(width, draw(st.booleans())) for _ in range(2))
    return ModelSpec(width, shared + last, tied=(0, 1))


@st.composite
def with_transposed(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight is stored transposed: it is dense, but not contiguous."""
    sizes = st.integers(2, 4)
    layers = (Linear(draw(sizes), draw(st.booleans())), Linear(draw(st.integers(1, 3)), draw(st.booleans())))
    return draw_wrapped(draw, bounds, ModelSpec(draw(sizes), layers, transposed=0))


@st.composite
def with_convolution(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer is a convolution."""
    return draw_wrapped(draw, bounds, draw_convolution(draw))


@st.composite
def of_other_layers(draw: Draw, bounds: Bounds) -> Scenario:
    """One or two layers are not linear."""
    return draw_wrapped(draw, bounds, draw_other_layers(draw))


@st.composite
def clipping(draw: Draw, bounds: Bounds) -> Scenario:
    """Gradients are clipped before the optimizer's step."""
    return draw_wrapped(draw, bounds, draw_model(draw), clip=draw(st.sampled_from((0.5, 0.1))))


evaluating = having(plain, evaluates=True)


@st.composite
def with_keyword(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is called with a keyword argument, which may be None, or with keyword arguments alone."""
    drawn = draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(1, 2)), keyword=True), steps=1)
    by_name, gain_none = draw(st.booleans()), draw(st.booleans())
    return replace(drawn, model=replace(drawn.model, by_name=by_name, gain_none=gain_none))
