"""Strategies for optimizers: ranks that start equal and see the same batch, so that nothing else can be wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import Branch, ModelSpec
from conformance.scenarios.scenario import AddGroup, Event, Group, OptimizerSpec, Scenario, Unfreeze
from conformance.strategies.building_blocks import (
    NARROW_RATES,
    Bounds,
    Draw,
    Drawer,
    between_steps,
    broadened,
    called,
    decaying,
    draw_adamw,
    draw_convolution,
    draw_model,
    draw_optimizer,
    draw_sgd,
    draw_values,
    narrow,
)

Names: TypeAlias = tuple[str, ...]


def draw_optimized(
    draw: Draw, bounds: Bounds, optimizer: OptimizerSpec, *, more_layers: int = 0, widest: int = 4, **fixed: Any
) -> Scenario:
    """Draw a scenario for an optimizer: equal ranks, and at least as many parameters as ranks."""
    world_size = draw(st.integers(2, bounds.world_size))
    fewest = (world_size + 1) // 2 + more_layers
    drawn = Scenario(
        world_size=world_size,
        model=draw_model(draw, layers=(fewest, fewest + 1), biases=True, widest=widest),
        optimizer=optimizer,
        steps=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 2)),
        replicated=True,
        cleared_by="model",
        seed=draw(st.integers(0, 99)),
    )
    return replace(drawn, **fixed)


def stepping(
    *,
    optimizer: Callable[[Draw], OptimizerSpec] = draw_optimizer,
    event: Callable[[int], Event] | None = None,
    **is_: Any,
) -> Drawer:
    """Return a strategy of optimizers with one parameter group.

    Args:
        optimizer: draws its class and options.
        event: makes, for a step, what happens between that step and the one before.
        is_: attributes of the scenario: values, or strategies of values.
    """

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        return between_steps(draw, draw_optimized(draw, bounds, optimizer(draw), **draw_values(draw, is_)), event)

    return called(drawn, "stepping", (optimizer.__qualname__, event, is_))


optimized = stepping()
optimized_on_one_rank = narrow(optimized, world_size=1)
optimized_in_float32 = narrow(optimized, "float32")
optimized_in_bfloat16 = narrow(optimized, "bfloat16")
optimized_clipped = stepping(clip=st.sampled_from((0.5, 0.1)))
lasting = stepping(steps=st.sampled_from((7, 12)), counted=True)
clearing = stepping(steps=1, cleared_by="optimizer", set_to_none=st.booleans())
with_closure = stepping(steps=st.integers(1, 2), closure=True)
beside_wrapper = stepping(steps=st.integers(2, 3), replicated=False, averaged=True, cleared_by="optimizer")


@st.composite
def optimized_with_convolution(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter has four dimensions, stored channels last or not."""
    drawn: Scenario = draw(optimized(bounds))
    return replace(drawn, model=draw_convolution(draw))


@st.composite
def with_more_ranks(draw: Draw, bounds: Bounds) -> Scenario:
    """Fewer parameters than ranks."""
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw))
    biased = drawn.world_size > 2 and draw(st.booleans())  # noqa: PLR2004  two parameters need three ranks
    return replace(drawn, model=replace(drawn.model, layers=(Linear(draw(st.integers(1, 3)), biased),)))


def draw_parted(
    draw: Draw, bounds: Bounds, optimizer: OptimizerSpec, **fixed: Any
) -> tuple[Scenario, tuple[Names, Names]]:
    """Draw a scenario, and its parameters in two parts, each with a parameter for every rank."""
    drawn = draw_optimized(draw, bounds, optimizer, more_layers=bounds.world_size // 2, **fixed)
    names, ranks = tuple(drawn.model.shapes), drawn.world_size
    cut = draw(st.integers(ranks, len(names) - ranks))
    return drawn, ((names[::2], names[1::2]) if draw(st.booleans()) else (names[:cut], names[cut:]))


@st.composite
def optimized_in_mixed_dtypes(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer computes in float32, the others in float64."""
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw, NARROW_RATES), more_layers=1)
    odd = draw(st.integers(0, len(drawn.model.layers) - 1))
    return replace(drawn, model=drawn.model.with_dtype(odd, "float32"))


def with_one_parameter(drawn: Drawer) -> Drawer:
    """Return a strategy of the same scenarios, but for a single parameter: ranks but one own none."""
    return called(lambda bounds: drawn(bounds).map(_of_one_parameter), drawn.__qualname__, "with_one_parameter")


def _of_one_parameter(drawn: Scenario) -> Scenario:
    model = replace(drawn.model, layers=(Linear(drawn.model.widths[1], bias=False),))
    return replace(drawn, model=model, optimizer=replace(drawn.optimizer, groups=()))


@st.composite
def optimized_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Some of the optimizer's parameters do not require gradients."""
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw), more_layers=1)
    frozen = draw(st.sampled_from(tuple(drawn.model.shapes)))
    return decaying(replace(drawn, model=replace(drawn.model, frozen=(frozen,))))


@st.composite
def optimized_unused(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter is used in no step, or in every other one; weight decay would move it if it had a gradient.

    The optimizer clears gradients, and zeroes them where there are any if the parameter never has one.
    """
    model = draw_model(draw, layers=(2, 3), biases=True)
    branch: Branch = draw(st.sampled_from(("unused", "used_in_odd_steps", "used_in_even_steps")))
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw), steps=draw(st.integers(2, 3)), cleared_by="optimizer")
    return decaying(replace(drawn, model=replace(model, branch=branch), set_to_none=branch != "unused"))


@st.composite
def optimized_large(draw: Draw, bounds: Bounds) -> Scenario:
    """A weight of 1 MiB, or a little more, for every rank; little else is drawn, since every run moves megabytes."""
    widths = st.sampled_from((512, 520))
    layers = tuple(Linear(draw(widths), bias=False) for _ in range(max(3, bounds.world_size)))
    model = ModelSpec(512, layers, dtype="float32")
    optimizer = OptimizerSpec("SGD", {"lr": NARROW_RATES[0]})
    return Scenario(bounds.world_size, model, optimizer, replicated=True, cleared_by="model")


@st.composite
def with_state(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer keeps state of weights of many KiB, and of biases that are much smaller."""
    at_once = OptimizerSpec("Adagrad", {"lr": 0.1})  # has its state from construction on
    optimizer = at_once if draw(st.booleans()) else draw_stateful(draw)
    drawn = draw_optimized(draw, bounds, optimizer, more_layers=1, widest=8, steps=1)
    return replace(drawn, model=broadened(drawn.model))


@st.composite
def with_large_weights(draw: Draw, bounds: Bounds) -> Scenario:
    """The same with several weights for every rank, of similar size."""
    drawn = draw_optimized(draw, bounds, draw_stateful(draw), steps=1)
    sizes = st.integers(4, 8)
    layers = tuple(Linear(draw(sizes)) for _ in range(3 * drawn.world_size))
    return replace(drawn, model=broadened(ModelSpec(draw(sizes), layers)))


@st.composite
def with_large_weights_in_two_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """The same with half of the weights in a second group, which may be added before the first step or the second."""
    drawn, names = _in_halves(draw, bounds)
    groups, added = tuple(Group(some, {}) for some in names), draw(st.sampled_from((None, 0, 1)))
    if added is None:
        return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))
    optimizer = replace(drawn.optimizer, groups=groups[:1])
    return replace(drawn, optimizer=optimizer, schedule=(AddGroup(added, groups[1]),))


@st.composite
def with_large_weights_unfrozen(draw: Draw, bounds: Bounds) -> Scenario:
    """The same with half of the weights frozen when the optimizer is made, and until the second step."""
    drawn, names = _in_halves(draw, bounds)
    return replace(drawn, model=replace(drawn.model, frozen=names[1]), schedule=(Unfreeze(1, names[1]),))


def _in_halves(draw: Draw, bounds: Bounds) -> tuple[Scenario, tuple[Names, Names]]:
    """Draw a scenario of two steps with eight weights for every rank, of similar size, and these in two halves."""
    drawn = draw_optimized(draw, bounds, draw_stateful(draw), steps=2)
    sizes = st.integers(5, 8)
    layers = tuple(Linear(draw(sizes), bias=False) for _ in range(8 * drawn.world_size))
    scenario = replace(drawn, model=broadened(ModelSpec(draw(sizes), layers)))
    names, half = tuple(scenario.model.shapes), len(layers) // 2
    return scenario, (names[:half], names[half:])


@st.composite
def optimized_of_any_shape(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter has no dimensions, or no elements, or is shared, or is stored transposed."""
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw), more_layers=1)
    width = draw(st.integers(2, 3))
    square = replace(drawn.model, inputs=width, layers=tuple(Linear(width) for _ in drawn.model.layers))
    kinds = (
        replace(drawn.model, scale=True),
        replace(drawn.model, empty=True),
        replace(square, tied=(0, 1)),
        replace(square, transposed=0),
    )
    return replace(drawn, model=draw(st.sampled_from(kinds)))


def draw_stateful(draw: Draw) -> OptimizerSpec:
    """Draw an optimizer that keeps state of every parameter."""
    if draw(st.booleans()):
        spec = draw_sgd(draw)
        return replace(spec, options={**spec.options, "momentum": 0.9})
    return draw_adamw(draw)
