"""The layers of a model as plain data: how wide they are, which parameters they have. Nothing here imports torch."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from conformance.scenarios.compact_repr import Brief

Dtype: TypeAlias = Literal["float64", "float32", "bfloat16", "float16", "complex128"]
NormName: TypeAlias = Literal["LayerNorm", "RMSNorm", "GroupNorm"]
Shape: TypeAlias = tuple[int, ...]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "complex128": 16}
KERNEL = 2  # height and width of a convolution's kernel
_MAPS = 3  # queries, keys and values


@dataclass(frozen=True, repr=False)
class Linear(Brief):
    """One linear layer of a model: how many outputs, whether it adds a bias, and its dtype (None: the model's)."""

    outputs: int
    bias: bool = True
    dtype: Dtype | None = None

    def width(self, _: int) -> int:
        """Return how many values it gives for each sample."""
        return self.outputs

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of its parameters, given how many values it gets for each sample."""
        return {"weight": (self.outputs, inputs), **({"bias": (self.outputs,)} if self.bias else {})}


@dataclass(frozen=True, repr=False)
class Conv(Brief):
    """A 2-by-2 convolution of the values, each a channel; its weight may be stored channels last."""

    outputs: int
    channels_last: bool = False

    def width(self, _: int) -> int:
        """Return the number of output channels."""
        return self.outputs

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of weight and bias."""
        return {"weight": (self.outputs, inputs, KERNEL, KERNEL), "bias": (self.outputs,)}


class _KeepsWidth(Brief):
    """A layer that gives as many values as it gets."""

    def width(self, inputs: int) -> int:
        """Return how many values it gets."""
        return inputs


@dataclass(frozen=True, repr=False)
class Norm(_KeepsWidth):
    """A norm over each sample's values: torch's class of that name; of groups, with one group."""

    name: NormName = "LayerNorm"

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of the weight, and of the bias if there is one."""
        return {"weight": (inputs,), **({} if self.name == "RMSNorm" else {"bias": (inputs,)})}


@dataclass(frozen=True, repr=False)
class SmoothNorm(_KeepsWidth):
    """A root mean square norm with a large epsilon, which gives values their dtype back."""

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of the weight."""
        return {"weight": (inputs,)}


@dataclass(frozen=True, repr=False)
class Embedding(_KeepsWidth):
    """Adds the row of a table which the first value selects; the table's gradient may be sparse."""

    rows: int = 3
    sparse: bool = False

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of the table."""
        return {"weight": (self.rows, inputs)}


@dataclass(frozen=True, repr=False)
class TokenEmbedding(Brief):
    """The rows of a table which ids of tokens select: how many rows, and how wide; it can only come first."""

    rows: int
    outputs: int

    def width(self, _: int) -> int:
        """Return how many values it gives for each token."""
        return self.outputs

    def shapes(self, _: int) -> dict[str, Shape]:
        """Return name and shape of the table."""
        return {"weight": (self.rows, self.outputs)}


@dataclass(frozen=True, repr=False)
class Attention(_KeepsWidth):
    """Self-attention over a short sequence that is made of the values."""

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of the weights."""
        return {"mix.weight": (_MAPS * inputs, inputs), "out.weight": (inputs, inputs)}


@dataclass(frozen=True, repr=False)
class Residual(_KeepsWidth):
    """A linear layer whose output is added to its input."""

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of weight and bias."""
        return {"weight": (inputs, inputs), "bias": (inputs,)}


@dataclass(frozen=True, repr=False)
class Magnitude(_KeepsWidth):
    """The absolute values of a linear map whose weight is complex."""

    def shapes(self, inputs: int) -> dict[str, Shape]:
        """Return name and shape of the weight."""
        return {"weight": (inputs, inputs)}


@dataclass(frozen=True, repr=False)
class Again(_KeepsWidth):
    """The module of an earlier layer, which keeps the width, once more."""

    layer: int

    def shapes(self, _: int) -> dict[str, Shape]:
        """Return nothing: the parameters are those of the earlier layer."""
        return {}


Layer: TypeAlias = (
    Linear | Conv | Norm | SmoothNorm | Embedding | TokenEmbedding | Attention | Residual | Magnitude | Again
)
_LAYERS: dict[str, type[Layer]] = {
    kind.__name__: kind
    for kind in (Linear, Conv, Norm, SmoothNorm, Embedding, TokenEmbedding, Attention, Residual, Magnitude, Again)
}


def dtype_of(layer: Layer) -> Dtype | None:
    """Return the dtype that a layer has for itself."""
    if isinstance(layer, Magnitude):
        return "complex128"
    return layer.dtype if isinstance(layer, Linear) else None


def layer_to_json(layer: Layer) -> dict[str, Any]:
    """Return a layer as what `json.dumps` takes."""
    return {"kind": type(layer).__name__, **asdict(layer)}


def layer_from_json(plain: dict[str, Any]) -> Layer:
    """Return the layer that `layer_to_json` made; raise KeyError or TypeError where it made something else."""
    return _LAYERS[plain["kind"]](**{name: value for name, value in plain.items() if name != "kind"})


def layer_as_code(layer: Layer, width: int) -> str:
    """Return the call that makes a layer's module, given how many values it gets for each sample."""
    match layer:
        case Linear():
            return f"nn.Linear({width}, {layer.outputs}, bias={layer.bias})"
        case Conv():
            return f"SpreadConv2d({width}, {layer.outputs}, channels_last={layer.channels_last})"
        case Norm():
            return f"nn.{layer.name}({'1, ' if layer.name == 'GroupNorm' else ''}{width})"
        case SmoothNorm():
            return f"SmoothNorm({width})"
        case Embedding():
            return f"AddedEmbedding({layer.rows}, {width}, sparse={layer.sparse})"
        case TokenEmbedding():
            return f"nn.Embedding({layer.rows}, {layer.outputs})"
        case Attention():
            return f"SelfAttention({width})"
        case Magnitude():
            return f"ComplexMagnitude({width})"
        case Residual():
            return f"ResidualLinear({width}, {width})"
        case _:
            return "nn.Identity()"  # an earlier layer takes its place
