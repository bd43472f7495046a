"""A model as plain data: its layers, and what is unusual about it. Nothing here imports torch."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal, TypeAlias

from conformance.scenarios.layers import (
    Dtype,
    Layer,
    Linear,
    Shape,
    TokenEmbedding,
    dtype_of,
    parameter_shapes,
    width_after,
)
from conformance.scenarios.plain_data import PlainData

Activation: TypeAlias = Literal["tanh", "gelu", "relu"]
Output: TypeAlias = Literal["tensor", "dataclass", "object"]
_WIDE: frozenset[Dtype] = frozenset({"float64", "complex128"})
Branch: TypeAlias = Literal[
    "none",
    "unused",
    "used_on_rank_0",
    "used_on_rank_1",
    "order_by_rank",
    "used_in_even_steps",
    "used_in_odd_steps",
    "used_in_turn",
    "one_each",
    "used_in_first_micro_batch",
]
BRANCHES: dict[Branch, int] = {"none": 0, "order_by_rank": 2, "one_each": 2}  # others have one


@dataclass(frozen=True, repr=False)
class ModelSpec(PlainData):
    """Layers one after the other, an activation between each two; where all are linear, a multilayer perceptron.

    Attributes:
        inputs: width of the input; where the first layer is an embedding of tokens, how many tokens a sample has.
        layers: the layers in forward order.
        activation: name of the activation.
        frozen: names of parameters that do not require gradients.
        registered: the layers' indices in the order in which the model registers them; empty: in forward order.
        tied: indices of two layers whose weights have one shape; the second uses the first one's.
        scale: whether a 0-dimensional parameter `scale` multiplies the output.
        empty: whether there is a parameter `empty` without elements, the sum of which is added to the output.
        transposed: index of a linear layer whose weight is stored transposed, so that it is not contiguous.
        gapped: index of a linear layer whose weight is some columns of a wider one, so that its rows have gaps between.
        buffer: whether the model has buffers (a float, an integer and a non-persistent one).
        recomputed: whether layers are computed again in backward (activation checkpointing).
        reentrant: whether this is the reentrant kind, which has a backward pass of its own for each layer.
        branch: a second path, `branches.0` (and `branches.1`), beside the layers: never used, used on one rank only, or
            two of one shape that odd ranks compute in the other order; or used by all ranks in every other step (the
            first one is even), or by even ranks in even steps and by odd ones in odd steps; or by all ranks in each
            step's first micro-batch; or two, one of which even ranks use, and the other odd ones.
        keyword: whether `forward` is called with the keyword argument `gain`.
        gain_none: whether that argument is None, for which the model has a value of its own, other than its default.
        by_name: whether the input is a keyword argument as well (`features`), so that there is no positional one.
        positional: whether it is called with `gain` as a second positional argument.
        nested: whether `forward` is called with a dict of a tuple, and returns a dict.
        named: whether `forward` is called with a named tuple, and returns one.
        output: what `forward` returns otherwise: a tensor, or a dataclass or an object of a plain class that holds it.
        dtype: of inputs, targets, buffers, and of parameters whose layer has none of its own.
    """

    inputs: int = 1
    layers: tuple[Layer, ...] = (Linear(1),)
    activation: Activation = "tanh"
    frozen: tuple[str, ...] = ()
    registered: tuple[int, ...] = ()
    tied: tuple[int, int] | None = None
    scale: bool = False
    empty: bool = False
    transposed: int | None = None
    gapped: int | None = None
    buffer: bool = False
    recomputed: bool = False
    reentrant: bool = False
    branch: Branch = "none"
    keyword: bool = False
    gain_none: bool = False
    by_name: bool = False
    positional: bool = False
    nested: bool = False
    named: bool = False
    output: Output = "tensor"
    dtype: Dtype = "float64"

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Width of the input, and of what each layer gives."""
        return tuple(accumulate(self.layers, width_after, initial=self.inputs))

    @property
    def tokens(self) -> int:
        """How many tokens there are, where that is what the model takes; 0 where it takes numbers."""
        first = self.layers[0]
        return first.rows if isinstance(first, TokenEmbedding) else 0

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Name and shape of each parameter, in the order of `named_parameters`; a shared one stands once."""
        shapes: dict[str, Shape] = {"scale": ()} if self.scale else {}
        shapes |= {"empty": (0, 3)} if self.empty else {}
        for index in self.registered or range(len(self.layers)):
            own = parameter_shapes(self.layers[index], self.widths[index])
            if self.tied is not None and index == self.tied[1]:
                del own["weight"]
            shapes |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
        for index in range(BRANCHES.get(self.branch, 1)):
            shapes[f"branches.{index}.weight"] = (self.widths[-1], self.inputs)
        return shapes

    @property
    def mixed(self) -> bool:
        """Whether a layer has a dtype of its own."""
        return any(dtype_of(layer) for layer in self.layers)

    @cached_property
    def dtypes(self) -> dict[str, Dtype]:
        """Name and dtype of each parameter."""
        own = {f"layers.{index}": dtype_of(layer) or self.dtype for index, layer in enumerate(self.layers)}
        return {name: own.get(name.rpartition(".")[0], self.dtype) for name in self.shapes}

    @property
    def narrow(self) -> bool:
        """Whether anything is computed in less than double precision."""
        return any(dtype not in _WIDE for dtype in (self.dtype, *self.dtypes.values()))

    @property
    def in_float64(self) -> "ModelSpec":
        """The same model without a narrower dtype."""
        layers = (replace(layer, dtype=None) if isinstance(layer, Linear) else layer for layer in self.layers)
        return replace(self, dtype="float64", layers=tuple(layers))

    @property
    def in_float32(self) -> "ModelSpec":
        """The same model one dtype narrower: float32 in place of float64, and bfloat16 where a layer has float32."""
        layers = (
            replace(layer, dtype="bfloat16") if isinstance(layer, Linear) and layer.dtype == "float32" else layer
            for layer in self.layers
        )
        return replace(self, dtype="float32", layers=tuple(layers)) if self.dtype == "float64" else self

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that require gradients."""
        return tuple(name for name in self.shapes if name not in self.frozen)
