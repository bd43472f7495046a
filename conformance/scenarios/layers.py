"""The layers of a model as plain data: how wide they are, which parameters they have. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from conformance.scenarios.plain_data import PlainData

Dtype: TypeAlias = Literal["float64", "float32", "bfloat16", "float16", "complex128"]
NormName: TypeAlias = Literal["LayerNorm", "RMSNorm", "GroupNorm"]
Shape: TypeAlias = tuple[int, ...]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "complex128": 16}


@dataclass(frozen=True, repr=False)
class Linear(PlainData):
    """One linear layer: how many outputs, whether it adds a bias, and its dtype (None: the model's)."""

    outputs: int
    bias: bool = True
    dtype: Dtype | None = None


@dataclass(frozen=True, repr=False)
class Conv(PlainData):
    """A 2-by-2 convolution of the values, each a channel; its weight may be stored channels last."""

    outputs: int
    channels_last: bool = False


@dataclass(frozen=True, repr=False)
class Norm(PlainData):
    """A norm over each sample's values: torch's class of that name. GroupNorm has one group."""

    name: NormName = "LayerNorm"


@dataclass(frozen=True, repr=False)
class SmoothNorm(PlainData):
    """A root mean square norm with a large epsilon, which gives values their dtype back."""


@dataclass(frozen=True, repr=False)
class Embedding(PlainData):
    """Adds the row of a table which the first value selects; the table's gradient may be sparse."""

    rows: int = 3
    sparse: bool = False


@dataclass(frozen=True, repr=False)
class TokenEmbedding(PlainData):
    """The rows of a table which ids of tokens select: how many rows, and how wide. It can only be the first layer."""

    rows: int
    outputs: int


@dataclass(frozen=True, repr=False)
class Attention(PlainData):
    """Self-attention over a short sequence that is made of the values."""


@dataclass(frozen=True, repr=False)
class Residual(PlainData):
    """A linear layer whose output is added to its input."""


@dataclass(frozen=True, repr=False)
class Position(PlainData):
    """Adds to each sample a parameter of its shape; for one sample, both get the same tensor as their gradient."""


@dataclass(frozen=True, repr=False)
class Magnitude(PlainData):
    """The absolute values of a linear map whose weight is complex."""

    dtype: ClassVar[Dtype] = "complex128"


@dataclass(frozen=True, repr=False)
class Again(PlainData):
    """The module of an earlier layer, which keeps the width, once more."""

    layer: int


Layer: TypeAlias = (
    Linear | Conv | Norm | SmoothNorm | Embedding | TokenEmbedding | Attention | Residual | Position | Magnitude | Again
)
_GIVEN_A_WIDTH: dict[type[PlainData], str] = {
    SmoothNorm: "SmoothNorm",
    Attention: "SelfAttention",
    Position: "AddedPosition",
    Magnitude: "ComplexMagnitude",
}


def width_after(inputs: int, layer: Layer) -> int:
    """Return how many values a layer gives for each sample or token; a layer without `outputs` keeps the width."""
    return int(getattr(layer, "outputs", inputs))


def dtype_of(layer: Layer) -> Dtype | None:
    """Return the dtype that a layer has for itself."""
    dtype: Dtype | None = getattr(layer, "dtype", None)
    return dtype


def parameter_shapes(layer: Layer, inputs: int) -> dict[str, Shape]:
    """Return name and shape of a layer's own parameters, given how many values it gets for each sample."""
    match layer:
        case Linear(outputs, bias):
            return {"weight": (outputs, inputs), **({"bias": (outputs,)} if bias else {})}
        case Conv(outputs):
            return {"weight": (outputs, inputs, 2, 2), "bias": (outputs,)}
        case Norm("RMSNorm") | SmoothNorm():
            return {"weight": (inputs,)}
        case Norm():
            return {"weight": (inputs,), "bias": (inputs,)}
        case Embedding() | TokenEmbedding():
            return {"weight": (layer.rows, width_after(inputs, layer))}
        case Attention():
            return {"mix.weight": (3 * inputs, inputs), "out.weight": (inputs, inputs)}  # queries, keys and values
        case Residual():
            return {"weight": (inputs, inputs), "bias": (inputs,)}
        case Position() | Magnitude():
            return {"weight": (1 if isinstance(layer, Position) else inputs, inputs)}
        case Again():
            return {}


def construction(layer: Layer, inputs: int) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return class, arguments and keyword arguments of a layer's module, given how many values it gets."""
    match layer:
        case Linear(outputs, bias):
            return "nn.Linear", (inputs, outputs), {"bias": bias}
        case Conv(outputs, channels_last):
            return "SpreadConv2d", (inputs, outputs), {"channels_last": channels_last}
        case Norm(name):
            return f"nn.{name}", (1, inputs) if name == "GroupNorm" else (inputs,), {}
        case Embedding(rows, sparse):
            return "AddedEmbedding", (rows, inputs), {"sparse": sparse}
        case TokenEmbedding(rows, outputs):
            return "nn.Embedding", (rows, outputs), {}
        case Residual():
            return "ResidualLinear", (inputs, inputs), {}
        case SmoothNorm() | Attention() | Position() | Magnitude():
            return _GIVEN_A_WIDTH[type(layer)], (inputs,), {}
        case _:
            return "nn.Identity", (), {}  # an earlier layer takes its place


def layer_as_code(layer: Layer, inputs: int) -> str:
    """Return the call that makes a layer's module, given how many values it gets for each sample."""
    name, arguments, options = construction(layer, inputs)
    return f"{name}({', '.join([*map(repr, arguments), *(f'{key}={value!r}' for key, value in options.items())])})"
