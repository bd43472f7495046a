"""Hypothesis strategies that draw scenarios: the smallest first, one feature at a time on top of plain training."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from conformance.scenario import (
    AddGroup,
    Branch,
    Decay,
    Event,
    Group,
    Linear,
    ModelSpec,
    OptimizerSpec,
    Options,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)

_MIB = 2**20
_BYTES = 8
_BUCKETS = (1.0, 25.0, 64 / _MIB, 8 / _MIB, 1 / _MIB, 200 / _MIB)
_DEEP = 4


@dataclass(frozen=True)
class Bounds:
    """What a strategy may ask for: ranks, and whether the component takes a bucket size."""

    world_size: int
    bucketed: bool = False


Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Scenarios: TypeAlias = st.SearchStrategy[Scenario]


def _sgd(draw: Draw) -> OptimizerSpec:
    momentum = draw(st.sampled_from((0.0, 0.9)))
    options: Options = {
        "lr": draw(st.sampled_from((0.1, 0.02))),
        "momentum": momentum,
        "weight_decay": draw(st.sampled_from((0.0, 0.1))),
    }
    if momentum and draw(st.booleans()):
        options["nesterov"] = True
    return OptimizerSpec("SGD", options)


def _adamw(draw: Draw) -> OptimizerSpec:
    """Draw AdamW; `eps` is not tiny, since it keeps rounding in vanishing gradients from becoming steps of size lr."""
    options: Options = {
        "lr": draw(st.sampled_from((0.1, 0.02))),
        "betas": draw(st.sampled_from(((0.9, 0.999), (0.7, 0.95)))),
        "eps": draw(st.sampled_from((1e-4, 1e-6))),
        "weight_decay": draw(st.sampled_from((0.0, 0.1))),
    }
    return OptimizerSpec("AdamW", options)


def _optimizer(draw: Draw) -> OptimizerSpec:
    return _adamw(draw) if draw(st.booleans()) else _sgd(draw)


def _model(draw: Draw, *, layers: tuple[int, int] = (1, 3), biases: bool | None = None, widest: int = 4) -> ModelSpec:
    sizes = st.integers(1, widest)
    count = draw(st.integers(*layers))
    return ModelSpec(
        inputs=draw(sizes),
        layers=tuple(Linear(draw(sizes), draw(st.booleans()) if biases is None else biases) for _ in range(count)),
        activation=draw(st.sampled_from(("tanh", "gelu", "relu"))),
    )


def _wrapped(draw: Draw, bounds: Bounds, model: ModelSpec, **fixed: Any) -> Scenario:
    """Draw the rest of a scenario for a wrapper around `model`."""
    drawn = Scenario(
        world_size=draw(st.integers(2, bounds.world_size)),
        model=model,
        optimizer=_optimizer(draw),
        steps=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 3)),
        bucket_size_mb=draw(st.sampled_from(_BUCKETS)) if bounds.bucketed else 1.0,
        seed=draw(st.integers(0, 99)),
    )
    return replace(drawn, **fixed)


@st.composite
def plain(draw: Draw, bounds: Bounds) -> Scenario:
    """Training with nothing unusual in it."""
    return _wrapped(draw, bounds, _model(draw))


def widened(scenario: Scenario) -> Scenario:
    """Return a plain scenario with four layers of different sizes, whose gradients take several buckets."""
    model = ModelSpec(2, (Linear(3), Linear(2), Linear(4), Linear(1)))
    return replace(scenario, model=model, bucket_size_mb=9 * _BYTES / _MIB, steps=max(2, scenario.steps))


@st.composite
def on_one_rank(draw: Draw, bounds: Bounds) -> Scenario:
    """Plain training in a world of one."""
    return _wrapped(draw, bounds, _model(draw), world_size=1)


@st.composite
def with_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Some parameters do not require gradients; weight decay would move them if they were given one."""
    model = _freeze(draw, _model(draw, layers=(1, 3), biases=True))
    return _decaying(_wrapped(draw, bounds, model))


@st.composite
def with_tied(draw: Draw, bounds: Bounds) -> Scenario:
    """Two layers share their weight."""
    width = draw(st.integers(1, 3))
    last = (Linear(draw(st.integers(1, 3)), draw(st.booleans())),) if draw(st.booleans()) else ()
    shared = tuple(Linear(width, draw(st.booleans())) for _ in range(2))
    return _wrapped(draw, bounds, ModelSpec(width, shared + last, tied=(0, 1)))


@st.composite
def with_scale(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter has no dimensions."""
    return _wrapped(draw, bounds, replace(_model(draw), scale=True))


@st.composite
def with_transposed(draw: Draw, bounds: Bounds) -> Scenario:
    """One weight is stored transposed: it is dense, but not contiguous."""
    sizes = st.integers(2, 4)
    layers = (Linear(draw(sizes), draw(st.booleans())), Linear(draw(st.integers(1, 3)), draw(st.booleans())))
    return _wrapped(draw, bounds, ModelSpec(draw(sizes), layers, transposed=0))


@st.composite
def keeping_gradients(draw: Draw, bounds: Bounds) -> Scenario:
    """Gradients are zeroed in place between steps."""
    return _wrapped(draw, bounds, _model(draw), set_to_none=False, steps=draw(st.integers(2, 3)))


@st.composite
def with_keyword(draw: Draw, bounds: Bounds) -> Scenario:
    """The model is called with a keyword argument."""
    return _wrapped(draw, bounds, replace(_model(draw, layers=(1, 2)), keyword=True), steps=1)


@st.composite
def deep(draw: Draw, bounds: Bounds) -> Scenario:
    """At least three layers; buckets, if any, smaller than every layer; steps enough to settle."""
    model = _model(draw, layers=(3, _DEEP), widest=3)
    return _wrapped(draw, bounds, model, steps=3, bucket_size_mb=1 / _MIB if bounds.bucketed else 1.0)


@st.composite
def with_bucket_size(draw: Draw, bounds: Bounds) -> Scenario:
    """At least three layers, and a bucket size from below one parameter to above the model."""
    model = _model(draw, layers=(3, _DEEP), widest=4)
    size = draw(st.sampled_from((1 / _MIB, 1.0, 8 * _BYTES / _MIB, 16 * _BYTES / _MIB)))
    return _wrapped(draw, bounds, model, steps=2, bucket_size_mb=size)


@st.composite
def with_one_bucket(draw: Draw, bounds: Bounds) -> Scenario:
    """No bucket size: one unbounded bucket."""
    return _wrapped(draw, bounds, _model(draw, layers=(1, _DEEP)), steps=2, bucket_size_mb=None)


@st.composite
def with_buffers(draw: Draw, bounds: Bounds) -> Scenario:
    """The model has buffers, which differ between ranks."""
    return _wrapped(draw, bounds, replace(_model(draw, layers=(1, 2)), buffer=True), steps=1)


def with_branch(branch: Branch) -> Callable[[Bounds], Scenarios]:
    """Return a strategy of models that have a second path of this kind."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        model = replace(_model(draw, layers=(1, 2)), branch=branch)
        return _decaying(_wrapped(draw, bounds, model, steps=2))

    return drawn


@st.composite
def unfreezing(draw: Draw, bounds: Bounds) -> Scenario:
    """Frozen parameters are let train after the first step."""
    model = _freeze(draw, _model(draw, layers=(1, 3), biases=True))
    return _wrapped(draw, bounds, model, steps=3, schedule=(Unfreeze(1, model.frozen),))


def _freeze(draw: Draw, model: ModelSpec) -> ModelSpec:
    """Freeze some parameters, never all, and never so that only the first layer's could train in vain."""
    names = tuple(model.shapes)
    chosen = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    return replace(model, frozen=tuple(name for name in names if name in chosen))


def _decaying(scenario: Scenario) -> Scenario:
    spec = scenario.optimizer
    return replace(scenario, optimizer=replace(spec, options={**spec.options, "weight_decay": 0.1}))


def _optimized(
    draw: Draw, bounds: Bounds, optimizer: OptimizerSpec, *, more_layers: int = 0, widest: int = 4, **fixed: Any
) -> Scenario:
    """Draw a scenario for an optimizer: equal ranks, and at least as many parameters as ranks."""
    world_size = draw(st.integers(2, bounds.world_size))
    fewest = (world_size + 1) // 2 + more_layers
    drawn = Scenario(
        world_size=world_size,
        model=_model(draw, layers=(fewest, fewest + 1), biases=True, widest=widest),
        optimizer=optimizer,
        steps=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 2)),
        replicated=True,
        cleared_by="model",
        seed=draw(st.integers(0, 99)),
    )
    return replace(drawn, **fixed)


@st.composite
def optimized(draw: Draw, bounds: Bounds) -> Scenario:
    """One parameter group, nothing unusual."""
    return _optimized(draw, bounds, _optimizer(draw))


@st.composite
def optimized_on_one_rank(draw: Draw, bounds: Bounds) -> Scenario:
    """The same in a world of one."""
    return replace(_optimized(draw, bounds, _optimizer(draw)), world_size=1)


@st.composite
def with_more_ranks(draw: Draw, bounds: Bounds) -> Scenario:
    """Fewer parameters than ranks."""
    drawn = _optimized(draw, bounds, _optimizer(draw))
    biased = drawn.world_size > 2 and draw(st.booleans())  # noqa: PLR2004  two parameters need three ranks
    return replace(drawn, model=replace(drawn.model, layers=(Linear(draw(st.integers(1, 3)), biased),)))


@st.composite
def with_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, each with a parameter for every rank."""
    drawn = _optimized(draw, bounds, _optimizer(draw), more_layers=bounds.world_size // 2)
    names, ranks = tuple(drawn.model.shapes), drawn.world_size
    cut = draw(st.integers(ranks, len(names) - ranks))
    first, second = (names[::2], names[1::2]) if draw(st.booleans()) else (names[:cut], names[cut:])
    kind = drawn.optimizer.kind
    groups = (Group(first, {"lr": 0.05}), Group(second, _own_options(draw, kind)))
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


def _own_options(draw: Draw, kind: str) -> Options:
    options: Options = {"lr": draw(st.sampled_from((0.01, 0.2)))}
    if draw(st.booleans()):
        options["weight_decay"] = 0.3
    if draw(st.booleans()):
        options |= {"momentum": 0.5} if kind == "SGD" else {"betas": (0.5, 0.9)}
    return options


def adding_group(*, before_training: bool) -> Callable[[Bounds], Scenarios]:
    """Return a strategy that adds the last layer as a group, before training or between two steps."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        steps = draw(st.integers(1, 3)) if before_training else draw(st.integers(2, 4))
        scenario = _optimized(draw, bounds, _optimizer(draw), more_layers=1, steps=steps)
        last = len(scenario.model.layers) - 1
        group = Group((f"layers.{last}.weight", f"layers.{last}.bias"), _own_options(draw, scenario.optimizer.kind))
        step = 0 if before_training else draw(st.integers(1, steps - 1))
        return replace(scenario, schedule=(AddGroup(step, group),))

    return drawn


@st.composite
def changing_lr(draw: Draw, bounds: Bounds) -> Scenario:
    """The learning rate is changed through `param_groups`."""
    steps = draw(st.integers(2, 4))
    event: Event = SetOption(draw(st.integers(1, steps - 1)), "lr", draw(st.sampled_from((0.5, 0.001))))
    return _optimized(draw, bounds, _optimizer(draw), steps=steps, schedule=(event,))


@st.composite
def with_scheduler(draw: Draw, bounds: Bounds) -> Scenario:
    """The learning rate is changed by a scheduler."""
    event: Event = Decay(draw(st.sampled_from((0.5, 0.1))))
    return _optimized(draw, bounds, _optimizer(draw), steps=draw(st.integers(2, 3)), schedule=(event,))


@st.composite
def with_closure(draw: Draw, bounds: Bounds) -> Scenario:
    """`step` gets a closure."""
    return _optimized(draw, bounds, _optimizer(draw), steps=draw(st.integers(1, 2)), closure=True)


@st.composite
def clearing(draw: Draw, bounds: Bounds) -> Scenario:
    """Gradients are cleared by the optimizer, in either way."""
    return _optimized(draw, bounds, _optimizer(draw), steps=1, cleared_by="optimizer", set_to_none=draw(st.booleans()))


@st.composite
def optimized_frozen(draw: Draw, bounds: Bounds) -> Scenario:
    """Some of the optimizer's parameters do not require gradients."""
    drawn = _optimized(draw, bounds, _optimizer(draw), more_layers=1)
    frozen = draw(st.sampled_from(tuple(drawn.model.shapes)))
    return _decaying(replace(drawn, model=replace(drawn.model, frozen=(frozen,))))


@st.composite
def with_state(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer keeps state; the sizes of parameters differ much."""
    return _optimized(draw, bounds, _stateful(draw), more_layers=1, widest=8, steps=1)


@st.composite
def with_large_weights(draw: Draw, bounds: Bounds) -> Scenario:
    """The optimizer keeps state of several weights of similar size, and of biases that are much smaller."""
    drawn = _optimized(draw, bounds, _stateful(draw), steps=1)
    sizes = st.integers(4, 8)
    layers = tuple(Linear(draw(sizes)) for _ in range(3 * drawn.world_size))
    return replace(drawn, model=ModelSpec(draw(sizes), layers))


@st.composite
def saving_and_loading(draw: Draw, bounds: Bounds) -> Scenario:
    """Between two steps, the optimizer's state moves to a new optimizer by `state_dict`."""
    steps = draw(st.integers(2, 3))
    return _optimized(draw, bounds, _stateful(draw), steps=steps, schedule=(SaveAndLoad(1),))


def _stateful(draw: Draw) -> OptimizerSpec:
    if draw(st.booleans()):
        spec = _sgd(draw)
        return replace(spec, options={**spec.options, "momentum": 0.9})
    return _adamw(draw)


@st.composite
def beside_wrapper(draw: Draw, bounds: Bounds) -> Scenario:
    """Each rank has its own batch and gradients are averaged over ranks; the optimizer clears them."""
    return _optimized(
        draw, bounds, _optimizer(draw), steps=draw(st.integers(2, 3)), replicated=False, averaged=True,
        cleared_by="optimizer",
    )  # fmt: skip
