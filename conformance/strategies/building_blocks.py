"""What scenarios are drawn from: models, optimizers, and the bounds of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args

from hypothesis import strategies as st

from conformance.scenarios.layers import Again, Attention, Conv, Dtype, Embedding, Linear, Norm, NormName, Residual
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Event, OptimizerKind, OptimizerSpec, Options, Scenario


@dataclass(frozen=True)
class Bounds:
    """What a strategy may ask for: ranks, and whether the component takes a bucket size."""

    world_size: int
    bucketed: bool = False


def worlds(bounds: Bounds) -> st.SearchStrategy[int]:
    """Return a strategy of world sizes for a part: two ranks first, then more, then one."""
    return st.sampled_from((*range(2, bounds.world_size + 1), 1))


def several(bounds: Bounds) -> st.SearchStrategy[int]:
    """Return a strategy of world sizes for a part: two ranks first, then more."""
    return st.integers(2, bounds.world_size)


Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Drawer: TypeAlias = Callable[[Bounds], st.SearchStrategy[Any]]


@dataclass(frozen=True)
class OneOf:
    """Several strategies, each of which gets its share of a check's examples."""

    parts: tuple[Drawer, ...]

    def __call__(self, bounds: Bounds) -> st.SearchStrategy[Any]:
        """Return a strategy that draws from any of the parts."""
        return st.one_of(*(part(bounds) for part in self.parts))


def parts(drawn: Drawer) -> tuple[Drawer, ...]:
    """Return the alternatives of a strategy, or the strategy alone."""
    return drawn.parts if isinstance(drawn, OneOf) else (drawn,)


def one_of(*parts: Drawer) -> OneOf:
    """Return a strategy of these alternatives."""
    return OneOf(parts)


def having(drawn: Drawer, **options: Any) -> Drawer:
    """Return a strategy of the same scenarios or cases, but for some attributes."""
    return called(lambda bounds: drawn(bounds).map(lambda one: replace(one, **options)), drawn.__qualname__, options)


def draw_values(draw: Draw, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return these values by name, and what is drawn of those that are strategies."""
    return {name: draw(one) if isinstance(one, st.SearchStrategy) else one for name, one in given.items()}


def between_steps(draw: Draw, scenario: Scenario, event: Callable[[int], Event] | None) -> Scenario:
    """Return a scenario in which an event, made for a step, comes between two steps; the same one if there is none."""
    return scenario if event is None else replace(scenario, schedule=(event(draw(st.integers(1, scenario.steps - 1))),))


def narrow(drawn: Drawer, dtype: Dtype | None = None, **options: Any) -> Drawer:
    """Return a strategy of the same scenarios in a narrower dtype, or in any, its steps large enough to be seen."""

    @st.composite
    def narrower(draw: Draw, bounds: Bounds) -> Scenario:
        return narrowed(draw, replace(draw(drawn(bounds)), **options), dtype or draw(st.sampled_from(DTYPES)))

    return called(narrower, drawn.__qualname__, (dtype, options))


def called(drawn: Drawer, name: str, options: Any) -> Drawer:
    """Return a strategy under a name that tells it from others: what is drawn depends on the seed and on that name."""
    drawn.__qualname__ = f"{name}{options}"
    return drawn


SEEDS = st.integers(0, 99)
Scenarios: TypeAlias = st.SearchStrategy[Scenario]
Rates: TypeAlias = tuple[float, ...]
RATES: Rates = (0.1, 0.02)
NARROW_RATES: Rates = (0.5, 0.2)  # in bfloat16 a smaller step is lost in the rounding of the parameter
_OWN_OPTIONS: dict[OptimizerKind, tuple[Options, ...]] = {
    "SGD": ({"momentum": 0.9, "dampening": 0.3}, {"maximize": True}),
    "AdamW": ({"amsgrad": True}, {"maximize": True}),
    "Adam": ({}, {"amsgrad": True}, {"betas": (0.5, 0.9)}),
    "RMSprop": ({}, {"alpha": 0.5}, {"momentum": 0.9, "centered": True}),
    "Adagrad": ({}, {"lr_decay": 0.5}, {"initial_accumulator_value": 0.5}),
    "Adadelta": ({}, {"rho": 0.5}),
    "Adamax": ({}, {"betas": (0.5, 0.9)}),
    "NAdam": ({}, {"momentum_decay": 0.1}),
    "RAdam": ({}, {"betas": (0.5, 0.9)}),
    "ASGD": ({}, {"lambd": 0.1}),
    "Rprop": ({}, {"etas": (0.3, 1.5)}),
}
_WITHOUT_DECAY = {"Rprop"}
_BROAD = 64
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")


def draw_sgd(draw: Draw, rates: Rates = RATES) -> OptimizerSpec:
    """Draw SGD, with or without momentum and weight decay."""
    momentum = draw(st.sampled_from((0.0, 0.9)))
    options: Options = {
        "lr": draw(st.sampled_from(rates)),
        "momentum": momentum,
        "weight_decay": draw(st.sampled_from((0.0, 0.1))),
    }
    if momentum and draw(st.booleans()):
        options["nesterov"] = True
    return OptimizerSpec("SGD", options)


def draw_adamw(draw: Draw, rates: Rates = RATES) -> OptimizerSpec:
    """Draw AdamW; `eps` is not tiny, since it keeps rounding in vanishing gradients from becoming steps of size lr."""
    options: Options = {
        "lr": draw(st.sampled_from(rates)),
        "betas": draw(st.sampled_from(((0.9, 0.999), (0.7, 0.95)))),
        "eps": draw(st.sampled_from((1e-4, 1e-6))),
        "weight_decay": draw(st.sampled_from((0.0, 0.1))),
    }
    return OptimizerSpec("AdamW", options)


def draw_optimizer(draw: Draw, rates: Rates = RATES) -> OptimizerSpec:
    """Draw either, with one of these learning rates."""
    return draw_adamw(draw, rates) if draw(st.booleans()) else draw_sgd(draw, rates)


def draw_model(
    draw: Draw, *, layers: tuple[int, int] = (1, 3), biases: bool | None = None, widest: int = 4
) -> ModelSpec:
    """Draw a perceptron with so many layers, each with a bias or not as told (None: drawn)."""
    sizes = st.integers(1, widest)
    count = draw(st.integers(*layers))
    return ModelSpec(
        inputs=draw(sizes),
        layers=tuple(Linear(draw(sizes), draw(st.booleans()) if biases is None else biases) for _ in range(count)),
        activation=draw(st.sampled_from(("tanh", "gelu", "relu"))),
    )


def broadened(model: ModelSpec) -> ModelSpec:
    """Return a perceptron with layers so wide that next to their weights flags and padding are small.

    Its activation is one that keeps numbers small: they would grow with the width.
    """
    linear = (layer for layer in model.layers if isinstance(layer, Linear))
    layers = tuple(replace(layer, outputs=_BROAD + layer.outputs) for layer in linear)
    return replace(model, inputs=_BROAD + model.inputs, layers=layers, activation="tanh")


def draw_convolution(draw: Draw) -> ModelSpec:
    """Draw a model with a convolution between linear layers, its weight stored channels last or not."""
    channels = st.integers(2, 3)
    middle = Conv(draw(channels), channels_last=draw(st.sampled_from((True, False))))
    return ModelSpec(draw(st.integers(1, 3)), (Linear(draw(channels)), middle, Linear(draw(st.integers(1, 2)))))


def draw_other_layers(draw: Draw) -> ModelSpec:
    """Draw a model with one or two layers between linear ones that are of another kind, or a layer used again."""
    width = draw(st.integers(3, 4))  # a norm of one value is constant, of two it knows their order only
    norms = tuple(Norm(name) for name in get_args(NormName))
    kinds = st.sampled_from((*norms, Embedding(), Attention(), Residual()))
    other = tuple(draw(kinds) for _ in range(draw(st.integers(1, 2))))
    again = (Again(draw(st.integers(1, len(other)))),) if draw(st.booleans()) else ()
    return ModelSpec(draw(st.integers(1, 3)), (Linear(width), *other, *again, Linear(draw(st.integers(1, 2)))))


def draw_any_optimizer(draw: Draw) -> OptimizerSpec:
    """Draw any of torch's optimizers, with options that only it has, with a learning rate or with its own default."""
    kind = draw(st.sampled_from(tuple(_OWN_OPTIONS)))
    options: Options = {"lr": rate} if (rate := draw(st.sampled_from((*RATES, None)))) else {}
    if kind not in _WITHOUT_DECAY:
        options["weight_decay"] = draw(st.sampled_from((0.0, 0.1)))
    return OptimizerSpec(kind, options | draw(st.sampled_from(_OWN_OPTIONS[kind])))


def narrowed(draw: Draw, scenario: Scenario, dtype: Dtype) -> Scenario:
    """Return the scenario in another dtype, its steps large enough to be seen in it."""
    if dtype == "float64":
        return scenario
    return replace(scenario, model=replace(scenario.model, dtype=dtype), optimizer=draw_optimizer(draw, NARROW_RATES))


def decaying(scenario: Scenario) -> Scenario:
    """Return the scenario with weight decay, which moves a parameter whose gradient is zero, but not one without."""
    spec = scenario.optimizer
    return replace(scenario, optimizer=replace(spec, options={**spec.options, "weight_decay": 0.1}))
