"""Strategies for optimizers: ranks that start equal and see the same batch, so that nothing else can be wrong."""

from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import assume
from hypothesis import strategies as st

from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import Branch, ModelSpec
from conformance.scenarios.scenario import OptimizerSpec, Scenario, Unfreeze
from conformance.strategies import building_blocks as blocks
from conformance.strategies.building_blocks import (
    NARROW_RATES,
    STATEFUL,
    Bounds,
    Draw,
    Drawer,
    broad,
    decaying,
    mapped,
    narrow,
    optimizers,
    perceptrons,
)
from conformance.strategies.dealing import leaves_nobody_empty

Names: TypeAlias = tuple[str, ...]


def draw_optimized(draw: Draw, bounds: Bounds, *, more_layers: int = 0, widest: int = 4, **attributes: Any) -> Scenario:
    """Draw a scenario for an optimizer: equal ranks, and something for every rank, however parameters are dealt out.

    Attributes are values, or strategies of values.
    """
    world_size = draw(blocks.several(bounds))
    fewest = (world_size + 1) // 2 + more_layers
    drawn = {
        "model": perceptrons((fewest, fewest + 1), biases=True, widest=widest),
        "optimizer": optimizers(),
        "steps": st.integers(1, 3),
        "batch": st.integers(1, 2),
        "replicated": True,
        "cleared_by": "model",
        "seed": blocks.SEEDS,
    }
    scenario = Scenario(world_size, **blocks.draw_values(draw, drawn | attributes))
    assume(leaves_nobody_empty(scenario.model, scenario.model.shapes, world_size))
    return scenario


def stepping(**attributes: Any) -> Drawer:
    """Return a strategy of optimizers with one parameter group; `draw_optimized` describes the arguments."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        return draw_optimized(draw, bounds, **attributes)

    return blocks.called(drawn, "stepping", attributes)


optimized = stepping()
optimized_on_one_rank = narrow(optimized, world_size=1)
optimized_in_float32 = narrow(optimized, "float32")
optimized_in_bfloat16 = narrow(optimized, "bfloat16")
optimized_clipped = stepping(clip=st.sampled_from((0.5, 0.1)))
optimized_with_convolution = stepping(model=blocks.convolutions())
lasting = stepping(steps=st.sampled_from((7, 12)), counted=True)
scaled = stepping(steps=st.integers(2, 3), scaler=True)
clearing = stepping(steps=1, cleared_by="optimizer", set_to_none=st.booleans())
with_closure = stepping(steps=st.integers(1, 2), closure=True)
beside_wrapper = stepping(steps=st.integers(2, 3), replicated=False, averaged=True, cleared_by="optimizer")
_AT_ONCE = OptimizerSpec("Adagrad", {"lr": 0.1})  # has its state from construction on
# State of weights of many KiB, and of biases that are much smaller.
with_state = mapped(
    stepping(optimizer=st.just(_AT_ONCE) | STATEFUL, more_layers=1, widest=8, steps=1, weighed=True), broad
)


@st.composite
def with_more_ranks(draw: Draw, bounds: Bounds) -> Scenario:
    """Fewer parameters than ranks."""
    drawn = draw_optimized(draw, bounds)
    biased = drawn.world_size > 2 and draw(st.booleans())  # noqa: PLR2004  two parameters need three ranks
    return replace(drawn, model=replace(drawn.model, layers=(Linear(draw(st.integers(1, 3)), biased),)))


@st.composite
def optimized_in_mixed_dtypes(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer computes in float32, the others in float64."""
    drawn = draw_optimized(draw, bounds, more_layers=1, optimizer=optimizers(NARROW_RATES))
    return replace(drawn, model=draw(blocks.of_two_dtypes(st.just(drawn.model), "float32")))


def with_one_parameter(drawn: Drawer) -> Drawer:
    """Return a strategy of the same scenarios with a single parameter, which one rank owns."""
    return mapped(drawn, _of_one_parameter)


def _of_one_parameter(drawn: Scenario) -> Scenario:
    model = replace(drawn.model, layers=(Linear(drawn.model.widths[1], bias=False),))
    return replace(drawn, model=model, optimizer=replace(drawn.optimizer, groups=()))


@st.composite
def optimized_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """One of the optimizer's parameters does not require gradients."""
    drawn = draw_optimized(draw, bounds, more_layers=1)
    frozen = draw(st.sampled_from(tuple(drawn.model.shapes)))
    return decaying(replace(drawn, model=replace(drawn.model, frozen=(frozen,))))


@st.composite
def optimized_unused(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter is used in no step, or in every other one; weight decay would move it if it had a gradient.

    The optimizer clears gradients: it sets them to None, or to zero if the parameter never has one.
    """
    branch: Branch = draw(st.sampled_from(("unused", "used_in_odd_steps", "used_in_even_steps")))
    model = replace(draw(perceptrons((2, 3), biases=True)), branch=branch)
    drawn = draw_optimized(draw, bounds, model=model, steps=st.integers(2, 3), cleared_by="optimizer")
    return decaying(replace(drawn, set_to_none=branch != "unused"))


@st.composite
def optimized_large(draw: Draw, bounds: Bounds) -> Scenario:
    """A weight of 1 MiB, or a little more, for every rank. Little else is drawn, since every run moves megabytes."""
    widths = st.sampled_from((512, 520))
    layers = tuple(Linear(draw(widths), bias=False) for _ in range(max(3, bounds.world_size)))
    model = ModelSpec(512, layers, dtype="float32")
    optimizer = OptimizerSpec("SGD", {"lr": NARROW_RATES[0]})
    return Scenario(bounds.world_size, model, optimizer, replicated=True, cleared_by="model")


@st.composite
def with_large_weights(draw: Draw, bounds: Bounds) -> Scenario:
    """Three weights of many KiB for every rank, of similar size, and biases that are much smaller."""
    return draw_large_weights(draw, bounds, 3, bias=True, steps=1)


@st.composite
def with_large_weights_unfrozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Half of many large weights are frozen when the optimizer is made, and until the second step."""
    drawn = draw_large_weights(draw, bounds, 8, bias=False, steps=2)
    names = tuple(drawn.model.shapes)
    later = names[len(names) // 2 :]
    return replace(drawn, model=replace(drawn.model, frozen=later), schedule=(Unfreeze(1, later),))


def draw_large_weights(draw: Draw, bounds: Bounds, each: int, *, bias: bool, steps: int) -> Scenario:
    """Draw a scenario with `each` weights of many KiB for every rank, of similar size; their state is kept."""
    drawn = draw_optimized(draw, bounds, optimizer=STATEFUL, steps=steps)
    sizes = st.integers(5, 8)
    layers = tuple(Linear(draw(sizes), bias) for _ in range(each * drawn.world_size))
    return broad(replace(drawn, model=ModelSpec(draw(sizes), layers)))


@st.composite
def optimized_of_any_shape(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter has no dimensions, or no elements, or is shared, or is stored transposed."""
    drawn = draw_optimized(draw, bounds, more_layers=1)
    width = draw(st.integers(2, 3))
    square = replace(drawn.model, inputs=width, layers=tuple(Linear(width) for _ in drawn.model.layers))
    unusual = replace(drawn.model, scale=True), replace(drawn.model, empty=True)
    return replace(
        drawn, model=draw(st.sampled_from((*unusual, replace(square, tied=(0, 1)), replace(square, transposed=0))))
    )
