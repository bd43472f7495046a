"""What `fsdp` is asked once: to train a network on tokens whose parameters are sharded. Nothing here imports torch."""

import math
from dataclasses import dataclass

from conformance.scenarios.drawn import Case
from conformance.scenarios.layers import BYTES, Again, Dtype, Layer, Linear, SmoothNorm, TokenEmbedding
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import OptimizerSpec, Scenario


@dataclass(frozen=True, repr=False)
class FsdpCase(Case):
    """A network on tokens that is trained with its parameters sharded.

    It has an embedding, a norm and linear layers.

    Attributes:
        tokens: how many there are.
        widths: of the embedding, and of the outputs of each linear layer.
        steps, batch: optimizer steps, and samples per rank in each.
        alike: whether ranks start from equal weights.
        half: whether to compute in bfloat16.
        dtype: of parameters and data.
        micro_batches: backwards before each step, each with samples of its own.
        biased: whether linear layers add a bias.
        keyword: whether forward is called with a keyword argument.
        clears_late: whether gradients are cleared between a step's first forward and its backward, and not before.
        evaluates: whether a forward without gradients comes before each step.
        frozen: whether the first linear layer's weight does not train.
        buffered: whether the model has buffers, the same on all ranks.
        transposed: whether the first linear layer's weight is stored transposed, so that it is not contiguous.
        tied: whether the last layer's weight is the embedding's; it has to have the shape for that.
        scalar: whether a parameter without dimensions multiplies the output.
        again: whether the first linear layer, which then keeps the width, computes twice.
        unused: whether there is a linear layer beside the others that is never called.
        joined: whether the losses of a step's micro-batches are added up, and have one backward together.
        in_evaluation: whether the model trains in evaluation mode.
        seldom_gathered: whether whole parameters are gathered before training and after the last step alone.
        weighed: whether what is in memory after wrapping, in forward and after a step is weighed.
        counted: whether tensors that live after each step are counted.
    """

    tokens: int = 2
    widths: tuple[int, ...] = (2, 2)
    steps: int = 1
    batch: int = 1
    alike: bool = True
    half: bool = False
    dtype: Dtype = "float32"
    micro_batches: int = 1
    biased: bool = False
    keyword: bool = False
    clears_late: bool = False
    evaluates: bool = False
    frozen: bool = False
    buffered: bool = False
    transposed: bool = False
    tied: bool = False
    scalar: bool = False
    again: bool = False
    unused: bool = False
    joined: bool = False
    in_evaluation: bool = False
    seldom_gathered: bool = False
    weighed: bool = False
    counted: bool = False

    @property
    def whole(self) -> list[int]:
        """How many bytes each whole matrix has, the smallest first."""
        shapes = self.scenario.model.shapes.values()
        return sorted(BYTES[self.dtype] * math.prod(shape) for shape in shapes if len(shape) > 1)

    @property
    def uneven(self) -> bool:
        """Whether the ranks cannot divide the rows of some matrix evenly."""
        shapes = self.scenario.model.shapes.values()
        return any(shape[0] % self.world_size for shape in shapes if len(shape) > 1)

    @property
    def gathered(self) -> range:
        """The steps after which whole parameters are gathered."""
        return range(self.steps - 1 if self.seldom_gathered else 0, self.steps)

    @property
    def scenario(self) -> Scenario:
        """The training, as any other."""
        first, *rest = (Linear(width, bias=self.biased) for width in self.widths[1:])
        twice = (Again(_FIRST_LINEAR),) if self.again else ()
        layers: tuple[Layer, ...] = (TokenEmbedding(self.tokens, self.widths[0]), SmoothNorm(), first, *twice, *rest)
        return Scenario(
            world_size=self.world_size,
            model=ModelSpec(
                _POSITIONS,
                layers,
                frozen=(f"layers.{_FIRST_LINEAR}.weight",) if self.frozen else (),
                transposed=_FIRST_LINEAR if self.transposed else None,
                tied=(0, len(layers) - 1) if self.tied else None,
                scale=self.scalar,
                buffer=self.buffered,
                branch="unused" if self.unused else "none",
                keyword=self.keyword,
                dtype=self.dtype,
            ),
            optimizer=_PLAIN if self.half else _STATEFUL,
            steps=self.steps,
            batch=self.batch,
            micro_batches=self.micro_batches,
            joined=self.joined,
            clears_late=self.clears_late,
            evaluates=self.evaluates,
            in_evaluation=self.in_evaluation,
            seed=self.seed,
        )


_POSITIONS, _FIRST_LINEAR = 2, 2
_STATEFUL = OptimizerSpec("AdamW", {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1})
_PLAIN = OptimizerSpec("SGD", {"lr": 0.05})  # an update is as exact as the gradient: where that is small too
