"""The parts that scenarios are made of: models, optimizers, numbers of ranks. And how one strategy varies another."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args

from hypothesis import strategies as st

from conformance.scenarios.layers import (
    Again,
    Attention,
    Conv,
    Dtype,
    Embedding,
    Linear,
    Norm,
    NormName,
    Position,
    Residual,
)
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import OptimizerKind, OptimizerSpec, Options, Scenario


@dataclass(frozen=True)
class Bounds:
    """The largest number of ranks that a strategy may draw, and whether the component takes a bucket size."""

    world_size: int
    bucketed: bool = False


Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Drawer: TypeAlias = Callable[[Bounds], st.SearchStrategy[Any]]
Optimizers: TypeAlias = st.SearchStrategy[OptimizerSpec]
Rates: TypeAlias = tuple[float, ...]

SEEDS = st.integers(0, 99)
RATES: Rates = (0.1, 0.02)
NARROW_RATES: Rates = (0.5, 0.2)  # in bfloat16 a smaller step is lost in the rounding of the parameter
_DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")
_DECAYS = st.sampled_from((0.0, 0.1))
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


def worlds(bounds: Bounds) -> st.SearchStrategy[int]:
    """Return a strategy of world sizes for a part: two ranks first, then more, then one."""
    return st.sampled_from((*range(2, bounds.world_size + 1), 1))


def several(bounds: Bounds) -> st.SearchStrategy[int]:
    """Return a strategy of world sizes for a part: two ranks first, then more."""
    return st.integers(2, bounds.world_size)


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


def called(drawn: Drawer, name: str, options: Any) -> Drawer:
    """Name a strategy, and return it. Two strategies must not share a name: the seed derives from the name."""
    drawn.__qualname__ = f"{name}{options}"
    return drawn


def mapped(drawn: Drawer, change: Callable[[Any], Any], name: object = "") -> Drawer:
    """Return a strategy that draws the same scenarios or cases, and changes each."""
    if isinstance(drawn, OneOf):
        return one_of(*(mapped(part, change, name) for part in drawn.parts))
    return called(lambda bounds: drawn(bounds).map(change), drawn.__qualname__, name or f".{change.__qualname__}")


def having(drawn: Drawer, **attributes: Any) -> Drawer:
    """Return a strategy of the same scenarios or cases with other values of these attributes."""
    return mapped(drawn, lambda one: replace(one, **attributes), attributes)


def narrow(drawn: Drawer, dtype: Dtype | None = None, **attributes: Any) -> Drawer:
    """Return a strategy of the same scenarios in a narrower dtype (None: in any), with steps large enough for it."""

    @st.composite
    def narrower(draw: Draw, bounds: Bounds) -> Scenario:
        scenario: Scenario = replace(draw(drawn(bounds)), **attributes)
        into = dtype or draw(st.sampled_from(_DTYPES))
        if into == "float64":
            return scenario
        return replace(scenario, model=replace(scenario.model, dtype=into), optimizer=draw(optimizers(NARROW_RATES)))

    return called(narrower, drawn.__qualname__, (dtype, attributes))


def decaying(scenario: Scenario) -> Scenario:
    """Return the scenario with weight decay: it moves a parameter whose gradient is zero, and not one without."""
    spec = scenario.optimizer
    return replace(scenario, optimizer=replace(spec, options={**spec.options, "weight_decay": 0.1}))


def broad(scenario: Scenario) -> Scenario:
    """Return the scenario with the layers of its perceptron broadened."""
    return replace(scenario, model=broadened(scenario.model))


def draw_values(draw: Draw, given: dict[str, Any]) -> dict[str, Any]:
    """Return values by name, each of which was given, or is drawn from the strategy that was given."""
    return {name: draw(one) if isinstance(one, st.SearchStrategy) else one for name, one in given.items()}


@st.composite
def sgd(draw: Draw, rates: Rates = RATES, momentum: Rates = (0.0, 0.9)) -> OptimizerSpec:
    """SGD, with or without weight decay and Nesterov's momentum."""
    options: Options = {"lr": draw(st.sampled_from(rates)), "momentum": draw(st.sampled_from(momentum))}
    options["weight_decay"] = draw(_DECAYS)
    if options["momentum"] and draw(st.booleans()):
        options["nesterov"] = True
    return OptimizerSpec("SGD", options)


@st.composite
def adamw(draw: Draw, rates: Rates = RATES) -> OptimizerSpec:
    """AdamW. Its `eps` is not tiny, so that rounding in vanishing gradients does not become steps of size lr."""
    rate, betas = draw(st.sampled_from(rates)), draw(st.sampled_from(((0.9, 0.999), (0.7, 0.95))))
    eps = draw(st.sampled_from((1e-4, 1e-6)))
    return OptimizerSpec("AdamW", {"lr": rate, "betas": betas, "eps": eps, "weight_decay": draw(_DECAYS)})


def optimizers(rates: Rates = RATES) -> Optimizers:
    """Return a strategy of SGD and AdamW with one of these learning rates."""
    return sgd(rates) | adamw(rates)


STATEFUL = sgd(momentum=(0.9,)) | adamw()


@st.composite
def any_optimizer(draw: Draw) -> OptimizerSpec:
    """Any of torch's optimizers, with options that only it has, with a learning rate or with its own default."""
    kind = draw(st.sampled_from(tuple(_OWN_OPTIONS)))
    options: Options = {"lr": rate} if (rate := draw(st.sampled_from((*RATES, None)))) else {}
    if kind not in _WITHOUT_DECAY:
        options["weight_decay"] = draw(_DECAYS)
    return OptimizerSpec(kind, options | draw(st.sampled_from(_OWN_OPTIONS[kind])))


@st.composite
def perceptrons(
    draw: Draw, layers: tuple[int, int] = (1, 3), *, biases: bool | None = None, widest: int = 4
) -> ModelSpec:
    """Linear layers, as many as two bounds allow; all have a bias, or none, or some (None)."""
    sizes, biased = st.integers(1, widest), st.booleans() if biases is None else st.just(biases)
    count = draw(st.integers(*layers))
    return ModelSpec(
        inputs=draw(sizes),
        layers=tuple(Linear(draw(sizes), draw(biased)) for _ in range(count)),
        activation=draw(st.sampled_from(("tanh", "gelu", "relu"))),
    )


def broadened(model: ModelSpec) -> ModelSpec:
    """Return a perceptron with layers so wide that flags and padding are small next to their weights.

    Its activation is tanh, which keeps numbers small: they would grow with the width.
    """
    linear = (layer for layer in model.layers if isinstance(layer, Linear))
    layers = tuple(replace(layer, outputs=_BROAD + layer.outputs) for layer in linear)
    return replace(model, inputs=_BROAD + model.inputs, layers=layers, activation="tanh")


@st.composite
def of_two_dtypes(
    draw: Draw, models: st.SearchStrategy[ModelSpec], dtype: Dtype, *, odd: int | None = None
) -> ModelSpec:
    """Perceptrons of which one layer, the one with index `odd` or any (None), has a dtype of its own."""
    model: ModelSpec = draw(models)
    layers: list[Any] = list(model.layers)
    at = draw(st.integers(0, len(layers) - 1)) if odd is None else odd
    layers[at] = replace(layers[at], dtype=dtype)
    return replace(model, layers=tuple(layers))


@st.composite
def convolutions(draw: Draw) -> ModelSpec:
    """A convolution between linear layers, its weight stored channels last or not."""
    channels = st.integers(2, 3)
    middle = Conv(draw(channels), channels_last=draw(st.sampled_from((True, False))))
    return ModelSpec(draw(st.integers(1, 3)), (Linear(draw(channels)), middle, Linear(draw(st.integers(1, 2)))))


@st.composite
def contiguous_convolutions(draw: Draw) -> ModelSpec:
    """A convolution between linear layers, its weight stored channels first."""
    model: ModelSpec = draw(convolutions())
    layers = (replace(one, channels_last=False) if isinstance(one, Conv) else one for one in model.layers)
    return replace(model, layers=tuple(layers))


@st.composite
def registered_in_another_order(draw: Draw) -> ModelSpec:
    """Two to four linear layers, registered in another order than forward uses them in; half of them have one shape."""
    model: ModelSpec = draw(perceptrons((2, 4)))
    if draw(st.booleans()):
        model = replace(model, layers=(Linear(model.inputs, draw(st.booleans())),) * len(model.layers))
    used = tuple(range(len(model.layers)))
    others = st.permutations(used[::-1]).map(tuple).filter(lambda some: some != used)
    return replace(model, registered=draw(others))


@st.composite
def with_position(draw: Draw) -> ModelSpec:
    """A layer that adds a parameter of each sample's shape, between linear ones."""
    widths = st.integers(1, 3)
    return ModelSpec(draw(widths), (Linear(draw(widths)), Position(), Linear(draw(widths))))


@st.composite
def used_twice(draw: Draw) -> ModelSpec:
    """A linear layer that computes twice, one after the other; a further layer may follow."""
    width, last = draw(st.integers(1, 3)), Linear(draw(st.integers(1, 3)))
    more = (last,) if draw(st.booleans()) else ()
    return ModelSpec(width, (Linear(width, draw(st.booleans())), Again(0), *more))


@st.composite
def other_layers(draw: Draw) -> ModelSpec:
    """One or two layers of other kinds between linear ones; one of these may be used again."""
    width = draw(st.integers(3, 4))  # a norm of one value is constant; of two, it depends on their order alone
    norms = tuple(Norm(name) for name in get_args(NormName))
    kinds = st.sampled_from((*norms, Embedding(), Attention(), Residual()))
    other = tuple(draw(kinds) for _ in range(draw(st.integers(1, 2))))
    again = (Again(draw(st.integers(1, len(other)))),) if draw(st.booleans()) else ()
    return ModelSpec(draw(st.integers(1, 3)), (Linear(width), *other, *again, Linear(draw(st.integers(1, 2)))))


@st.composite
def tied(draw: Draw) -> ModelSpec:
    """Two or three linear layers, the first two of which share their weight."""
    width = draw(st.integers(1, 3))
    last = (Linear(draw(st.integers(1, 3)), draw(st.booleans())),) if draw(st.booleans()) else ()
    shared = tuple(Linear(width, draw(st.booleans())) for _ in range(2))
    return ModelSpec(width, shared + last, tied=(0, 1))


@st.composite
def transposed(draw: Draw) -> ModelSpec:
    """Two layers, the first of which has a weight that is stored transposed: it is dense, but not contiguous."""
    sizes = st.integers(2, 4)
    layers = (Linear(draw(sizes), draw(st.booleans())), Linear(draw(st.integers(1, 3)), draw(st.booleans())))
    return ModelSpec(draw(sizes), layers, transposed=0)


@st.composite
def frozen(draw: Draw, models: st.SearchStrategy[ModelSpec]) -> ModelSpec:
    """The same models in which some parameters, but not all, do not require gradients."""
    model: ModelSpec = draw(models)
    return replace(model, frozen=draw(freezable(model)))


def freezable(model: ModelSpec) -> st.SearchStrategy[tuple[str, ...]]:
    """Return a strategy of names of parameters: at least one, and not all."""
    names = tuple(model.shapes)
    chosen = st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1)
    return chosen.map(lambda some: tuple(name for name in names if name in some))
