"""Strategies for wrappers that are held to more than the assignment asks for, one unusual thing at a time."""

from collections.abc import Callable
from dataclasses import replace

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
    Scenarios,
    decaying,
    draw_model,
    draw_sgd,
)
from conformance.strategies.communication import deep
from conformance.strategies.wrapper import draw_frozen, draw_wrapped, with_transposed


@st.composite
def lasting(draw: Draw, bounds: Bounds) -> Scenario:
    """Some more steps, or more than ten, after which some do otherwise; what is alive after each is counted.

    So many that the count does not grow from each to the next by chance, where what threads hold goes when it goes.
    Before each step the model may have been in evaluation mode.
    """
    steps, evaluates = draw(st.sampled_from((7, 12))), draw(st.booleans())
    return draw_wrapped(draw, bounds, draw_model(draw, layers=(1, 2)), steps=steps, evaluates=evaluates, counted=True)


@st.composite
def of_many_parameters(draw: Draw, bounds: Bounds) -> Scenario:
    """More than a hundred parameters, of residual layers, through which gradients of one size come."""
    first, many = Linear(draw(st.integers(1, 2))), draw(st.integers(50, 70))
    layers: tuple[Layer, ...] = (first, *(Residual() for _ in range(many)), Linear(1))
    return draw_wrapped(draw, bounds, ModelSpec(draw(st.integers(1, 2)), layers), steps=1)


@st.composite
def beside_a_twin(draw: Draw, bounds: Bounds) -> Scenario:
    """A second model is wrapped, and computes gradients in between."""
    return draw_wrapped(draw, bounds, draw_model(draw, layers=(1, 2)), twins=True)


@st.composite
def with_empty(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter has no elements."""
    return draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(1, 2)), empty=True))


@st.composite
def with_gaps(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight is some columns of a wider one."""
    drawn: Scenario = draw(with_transposed(bounds))
    return replace(drawn, model=replace(drawn.model, transposed=None, gapped=0))


@st.composite
def with_nested(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is called with a dict that holds a tuple, and returns a dict."""
    return draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(1, 2)), nested=True), steps=1)


@st.composite
def with_named_tuples(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is called with a named tuple, and returns one."""
    return draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(1, 2)), named=True), steps=1)


@st.composite
def with_two_arguments(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is called with two positional arguments."""
    return draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(1, 2)), positional=True), steps=1)


@st.composite
def peeking(draw: Draw, bounds: Bounds) -> Scenario:
    """Between forward and backward, the model is called without gradients."""
    return draw_wrapped(draw, bounds, draw_model(draw, layers=(1, 2)), peeks=True)


@st.composite
def accumulating(draw: Draw, bounds: Bounds) -> Scenario:
    """Gradients of two or three backward passes add up; each is synchronised."""
    return draw_wrapped(draw, bounds, draw_model(draw), micro_batches=draw(st.integers(2, 3)))


@st.composite
def accumulating_unused(draw: Draw, bounds: Bounds) -> Scenario:
    """The same, where a second path is used by one rank alone."""
    drawn: Scenario = draw(with_branch("used_on_rank_0", "used_on_rank_1")(bounds))
    return replace(drawn, micro_batches=2, steps=draw(st.integers(1, 2)))


@st.composite
def joining(draw: Draw, bounds: Bounds) -> Scenario:
    """The losses of two or three forwards are added up, and have one backward."""
    drawn: Scenario = draw(accumulating(bounds))
    return replace(drawn, joined=True)


@st.composite
def accumulating_lazily(draw: Draw, bounds: Bounds) -> Scenario:
    """The same, under `no_sync` but for the last."""
    drawn: Scenario = draw(accumulating(bounds))
    return replace(drawn, no_sync=True)


@st.composite
def used_first_lazily(draw: Draw, bounds: Bounds) -> Scenario:
    """Two micro-batches, the first under `no_sync`, which alone uses a second path."""
    drawn: Scenario = draw(with_branch("used_in_first_micro_batch")(bounds))
    return replace(drawn, micro_batches=2, no_sync=True, steps=draw(st.integers(1, 2)))


@st.composite
def overlapping_lazily(draw: Draw, bounds: Bounds) -> Scenario:
    """At least three layers, and two micro-batches, the first under `no_sync`; waits are seen."""
    drawn: Scenario = draw(deep(bounds))
    return replace(drawn, micro_batches=2, no_sync=True)


@st.composite
def nesting_no_sync(draw: Draw, bounds: Bounds) -> Scenario:
    """The same, another block of `no_sync` having been entered and left in each."""
    drawn: Scenario = draw(accumulating_lazily(bounds))
    return replace(drawn, nests=True)


@st.composite
def lazily_on_one_rank(draw: Draw, bounds: Bounds) -> Scenario:
    """Micro-batches under `no_sync` in a world of one."""
    drawn: Scenario = draw(accumulating_lazily(bounds))
    return replace(drawn, world_size=1)


@st.composite
def with_buffers(draw: Draw, bounds: Bounds) -> Scenario:
    """The model has buffers, which differ between ranks; what is not waited for is seen."""
    model = replace(draw_model(draw, layers=(1, 2)), buffer=True)
    return draw_wrapped(draw, bounds, model, steps=1, gated=True)


@st.composite
def with_sparse_gradients(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer is an embedding whose gradient is sparse; SGD without weight decay takes such."""
    table = Embedding(draw(st.integers(2, 4)), sparse=True)
    model = ModelSpec(1, (Linear(draw(st.integers(1, 3))), table, Linear(draw(st.integers(1, 2)))))
    options: Options = {"lr": draw(st.sampled_from(RATES)), "momentum": draw(st.sampled_from((0.0, 0.9)))}
    return draw_wrapped(draw, bounds, model, optimizer=OptimizerSpec("SGD", options))


@st.composite
def with_uneven_sparse_gradients(draw: Draw, bounds: Bounds) -> Scenario:
    """The same, each rank with one sample more than the one before."""
    drawn: Scenario = draw(with_sparse_gradients(bounds))
    return replace(drawn, uneven=True)


@st.composite
def with_complex_numbers(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight is complex."""
    width = Linear(draw(st.integers(1, 3)))
    return draw_wrapped(draw, bounds, ModelSpec(draw(st.integers(1, 2)), (width, Magnitude(), Linear(1))))


@st.composite
def at_the_end_of_float16(draw: Draw, bounds: Bounds) -> Scenario:
    """One layer in float16, of which the bias trains; its gradients are as large as float16 can hold."""
    layer = Linear(draw(st.integers(1, 3)))
    model = ModelSpec(draw(st.integers(1, 3)), (layer,), frozen=("layers.0.weight",), dtype="float16")
    return draw_wrapped(draw, bounds, model, optimizer=draw_sgd(draw), steps=1, large=True)


def with_branch(*branches: Branch) -> Callable[[Bounds], Scenarios]:
    """Return a strategy of models that have a second path of one of these kinds."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        model = replace(draw_model(draw, layers=(1, 2)), branch=draw(st.sampled_from(branches)))
        return decaying(draw_wrapped(draw, bounds, model, steps=2))

    return drawn


@st.composite
def used_now_and_then(draw: Draw, bounds: Bounds) -> Scenario:
    """A second path is used in every other step, beginning with the first one or the second."""
    drawn: Scenario = draw(with_branch("used_in_even_steps", "used_in_odd_steps")(bounds))
    return replace(drawn, steps=draw(st.integers(2, 4)))


@st.composite
def used_in_turn(draw: Draw, bounds: Bounds) -> Scenario:
    """A second path is used by even ranks in even steps, and by odd ranks in odd ones."""
    drawn: Scenario = draw(with_branch("used_in_turn")(bounds))
    return replace(drawn, steps=draw(st.integers(2, 3)))


@st.composite
def with_large(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight has 1025 times 1024 elements; little else is drawn, since every run moves megabytes."""
    model = ModelSpec(1024, (Linear(1025),), dtype="float32")
    optimizer = OptimizerSpec("SGD", {"lr": NARROW_RATES[0]})
    size = draw(st.sampled_from((1.0, 25.0))) if bounds.bucketed else 1.0
    return Scenario(model=model, optimizer=optimizer, bucket_size_mb=size)


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
def aborting(draw: Draw, bounds: Bounds) -> Scenario:
    """A backward pass raises half way, and training goes on."""
    return draw_wrapped(draw, bounds, draw_model(draw, layers=(2, 3)), aborts=True, steps=draw(st.integers(2, 3)))


@st.composite
def aborting_lazily(draw: Draw, bounds: Bounds) -> Scenario:
    """The same under `no_sync`, as micro-batches are computed but for the last."""
    drawn: Scenario = draw(aborting(bounds))
    return replace(drawn, micro_batches=2, no_sync=True)


@st.composite
def loading(draw: Draw, bounds: Bounds) -> Scenario:
    """Between two steps, the wrapped model loads what its `state_dict` was before the first."""
    steps = draw(st.integers(2, 3))
    event = LoadWeights(draw(st.integers(1, steps - 1)))
    return draw_wrapped(draw, bounds, draw_model(draw), steps=steps, schedule=(event,))


@st.composite
def recomputing(draw: Draw, bounds: Bounds) -> Scenario:
    """Activations are computed again in backward."""
    return draw_wrapped(draw, bounds, replace(draw_model(draw, layers=(2, 3)), recomputed=True))


@st.composite
def penalising(draw: Draw, bounds: Bounds) -> Scenario:
    """The outputs' gradient by the inputs is part of the loss."""
    return draw_wrapped(draw, bounds, draw_model(draw), penalised=True)


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


@st.composite
def in_evaluation_mode(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is in evaluation mode while it trains."""
    return draw_wrapped(draw, bounds, draw_model(draw), in_evaluation=True)


@st.composite
def overflowing(draw: Draw, bounds: Bounds) -> Scenario:
    """One rank's gradients are infinite, or no numbers."""
    return draw_wrapped(draw, bounds, draw_model(draw), overflows=True, steps=1)


@st.composite
def held_later(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer holds the last layer's parameters only from the second step on; they have gradients before."""
    model = draw_model(draw, layers=(2, 3), biases=True)
    last = len(model.layers) - 1
    added = AddGroup(1, Group((f"layers.{last}.weight", f"layers.{last}.bias"), {}))
    return draw_wrapped(draw, bounds, model, steps=2, schedule=(added,))
