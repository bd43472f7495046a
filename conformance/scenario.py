"""A scenario: one model, one optimizer and one training schedule, as plain data.

It prints as Python that evaluates to itself, saves as JSON, and replays without Hypothesis. Nothing here imports torch.
"""

from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

Option: TypeAlias = float | bool | tuple[float, float]
Options: TypeAlias = dict[str, Option]
Activation: TypeAlias = Literal["tanh", "gelu", "relu"]
Branch: TypeAlias = Literal["none", "unused", "used_on_rank_0", "order_by_rank"]
OptimizerKind: TypeAlias = Literal["SGD", "AdamW"]
Dtype: TypeAlias = Literal["float64", "float32", "bfloat16"]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2}


class _Brief:
    """Prints as the call that makes it, without the arguments that have their default."""

    def __repr__(self) -> str:
        told = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _default(f)}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@dataclass(frozen=True, repr=False)
class Linear(_Brief):
    """One linear layer of a model: how many outputs, whether it adds a bias, and its dtype (None: the model's)."""

    outputs: int
    bias: bool = True
    dtype: Dtype | None = None


@dataclass(frozen=True, repr=False)
class ModelSpec(_Brief):
    """A multilayer perceptron.

    Attributes:
        inputs: width of the input.
        layers: the linear layers in forward order, an activation between each two.
        activation: name of the activation.
        frozen: names of parameters that do not require gradients.
        tied: indices of two layers of one shape; the second uses the first one's weight.
        scale: whether a 0-dimensional parameter `scale` multiplies the output.
        transposed: index of a layer whose weight is stored transposed, so that it is not contiguous.
        buffer: whether the model has buffers (a float, an integer and a non-persistent one).
        branch: a second path, `branches.0` (and `branches.1`), beside the layers: never used, used on rank 0 only,
            or two of one shape that odd ranks compute in the other order.
        keyword: whether `forward` is called with the keyword argument `gain`.
        dtype: of inputs, targets, buffers, and of parameters whose layer has none of its own.
    """

    inputs: int = 1
    layers: tuple[Linear, ...] = (Linear(1),)
    activation: Activation = "tanh"
    frozen: tuple[str, ...] = ()
    tied: tuple[int, int] | None = None
    scale: bool = False
    transposed: int | None = None
    buffer: bool = False
    branch: Branch = "none"
    keyword: bool = False
    dtype: Dtype = "float64"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, in the order of `named_parameters`; a tied one stands once."""
        shapes: dict[str, tuple[int, ...]] = {"scale": ()} if self.scale else {}
        width = self.inputs
        for index, layer in enumerate(self.layers):
            if self.tied is None or index != self.tied[1]:
                shapes[f"layers.{index}.weight"] = (layer.outputs, width)
            if layer.bias:
                shapes[f"layers.{index}.bias"] = (layer.outputs,)
            width = layer.outputs
        for index in range({"none": 0, "order_by_rank": 2}.get(self.branch, 1)):
            shapes[f"branches.{index}.weight"] = (width, self.inputs)
        return shapes

    @property
    def mixed(self) -> bool:
        """Whether a layer has a dtype of its own."""
        return any(layer.dtype for layer in self.layers)

    @property
    def dtypes(self) -> dict[str, Dtype]:
        """Name and dtype of each parameter."""
        own = {f"layers.{index}": layer.dtype or self.dtype for index, layer in enumerate(self.layers)}
        return {name: own.get(name.rpartition(".")[0], self.dtype) for name in self.shapes}

    @property
    def narrow(self) -> bool:
        """Whether anything is computed in less than float64."""
        return any(dtype != "float64" for dtype in (self.dtype, *self.dtypes.values()))

    @property
    def in_float64(self) -> "ModelSpec":
        """The same model without a narrower dtype."""
        return replace(self, dtype="float64", layers=tuple(replace(layer, dtype=None) for layer in self.layers))

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that require gradients."""
        return tuple(name for name in self.shapes if name not in self.frozen)


@dataclass(frozen=True, repr=False)
class Group(_Brief):
    """Parameters, by name, with options of their own."""

    parameters: tuple[str, ...]
    options: Options


@dataclass(frozen=True, repr=False)
class OptimizerSpec(_Brief):
    """A torch optimizer: its class, its options, and its parameter groups (none: one group of every parameter)."""

    kind: OptimizerKind = "SGD"
    options: Options = field(default_factory=lambda: {"lr": 0.1})
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, repr=False)
class SetOption(_Brief):
    """Before step `step`, write `value` to `option` of parameter group `group` (-1: of every group)."""

    step: int
    option: str
    value: float
    group: int = -1


@dataclass(frozen=True, repr=False)
class Decay(_Brief):
    """An `ExponentialLR` scheduler, stepped after each optimizer step."""

    gamma: float


@dataclass(frozen=True, repr=False)
class AddGroup(_Brief):
    """Before step `step` (0: right after construction), add a parameter group to the optimizer."""

    step: int
    group: Group


@dataclass(frozen=True, repr=False)
class Unfreeze(_Brief):
    """Before step `step`, let these frozen parameters require gradients."""

    step: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SaveAndLoad(_Brief):
    """Before step `step`, make a new optimizer and load the old one's `state_dict` into it."""

    step: int


@dataclass(frozen=True, repr=False)
class Rebuild(_Brief):
    """Before step `step`, make a new optimizer without the old one's state. Never drawn: a known mistake."""

    step: int


Event: TypeAlias = SetOption | Decay | AddGroup | Unfreeze | SaveAndLoad | Rebuild
_EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (SetOption, Decay, AddGroup, Unfreeze, SaveAndLoad, Rebuild)
}


@dataclass(frozen=True, repr=False)
class Scenario(_Brief):
    """Everything that decides a training run but the numbers, which derive from `seed` and the run's secret.

    Attributes:
        world_size: ranks.
        model, optimizer: what is trained, and how.
        steps: optimizer steps.
        batch: samples per rank and step.
        replicated: every rank gets the whole global batch, so that gradients need no synchronisation.
        averaged: the harness itself averages gradients over the ranks, as a plain data-parallel wrapper does.
        bucket_size_mb: for bucketed wrappers; in MiB, None for one unbounded bucket.
        set_to_none: what `zero_grad` is told.
        cleared_by: whose `zero_grad` is called before each step.
        closure: whether `step` gets a closure that computes the loss and the gradients.
        gated: whether results of collectives arrive only when somebody waits for them, and are NaN until then.
        schedule: what happens between steps.
        seed: selects weights and data.
    """

    world_size: int = 2
    model: ModelSpec = ModelSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    steps: int = 1
    batch: int = 1
    replicated: bool = False
    averaged: bool = False
    bucket_size_mb: float | None = 1.0
    set_to_none: bool = True
    cleared_by: Literal["optimizer", "model"] = "optimizer"
    closure: bool = False
    gated: bool = False
    schedule: tuple[Event, ...] = ()
    seed: int = 0

    def events(self, step: int) -> list[Event]:
        """Return what happens right before step `step`; a scheduler is made before step 0."""
        return [event for event in self.schedule if getattr(event, "step", 0) == step]


def to_json(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as what `json.dumps` takes."""
    plain = asdict(scenario)
    plain["schedule"] = [{"event": type(event).__name__, **asdict(event)} for event in scenario.schedule]
    return plain


def from_json(plain: dict[str, Any]) -> Scenario:
    """Return the scenario that `to_json` made, also after a trip through JSON text.

    Raises:
        KeyError, TypeError: the data is no scenario.
    """
    model, optimizer = dict(plain["model"]), plain["optimizer"]
    layers = tuple(Linear(**layer) for layer in model.pop("layers"))
    groups = tuple(_group(group) for group in optimizer["groups"])
    known = {field.name for field in fields(Scenario)} - {"model", "optimizer", "schedule"}
    return Scenario(
        model=ModelSpec(layers=layers, **{name: _tuples(value) for name, value in model.items()}),
        optimizer=OptimizerSpec(optimizer["kind"], _options(optimizer["options"]), groups),
        schedule=tuple(_event(dict(event)) for event in plain["schedule"]),
        **{name: plain[name] for name in known},
    )


def _group(plain: dict[str, Any]) -> Group:
    return Group(tuple(plain["parameters"]), _options(plain["options"]))


def _options(plain: dict[str, Any]) -> Options:
    return {name: _tuples(value) for name, value in plain.items()}


def _event(plain: dict[str, Any]) -> Event:
    kind = _EVENTS[plain.pop("event")]
    if kind is AddGroup:
        return AddGroup(plain["step"], _group(plain["group"]))
    return kind(**{name: _tuples(value) for name, value in plain.items()})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
