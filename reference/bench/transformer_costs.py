"""What a transformer of `reference.models` costs on paper: parameters, operations of a step, saved activations.

For a layer of width d with feed-forward width f, in a batch of B sequences of L tokens (T = B L):

- **Parameters.** Four matrices of attention, three of the feed-forward network, two norms: 4 d^2 + 3 d f + 2 d.
- **Operations.** A matrix of n elements takes 2 n T operations in forward. Attention's two products with L keys take
  4 T L d more. Backward computes two products for each one of forward, so a step takes three times a forward's.
- **Activations.** What autograd saves in forward until backward needs it, in elements. Each norm saves its input, the
  normalized input and one number per token; attention its input, q, k, v, the mixed values twice (before and after they
  are put in order) and one number per head and token; the feed-forward network its input and four hidden tensors (gate,
  its SiLU, up, their product): 11 T d + 4 T f + (heads + 2) T. The loss saves the log-probabilities: T V.

Norms and softmax compute few operations and are left out. A GPU's fused kernels save less: a fused norm saves 2 T d
less per layer.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (MLSys 2023), section 4;
Kaplan et al., "Scaling Laws for Neural Language Models" (2020), table 1.
"""

from dataclasses import dataclass

from reference.bench.accounting import ELEMENT_BYTES, Shape, paper
from reference.models.transformer import VOCABULARY, Size

_INDEX_BYTES = 8  # of a token, an int64
_ROTARY_TENSORS = 4  # cosine and sine, for queries and for keys


@dataclass(frozen=True)
class Batch:
    """Sequences on one rank, and their tokens each."""

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens on one rank."""
        return self.sequences * self.length


def shapes(size: Size, vocabulary: int = VOCABULARY) -> list[Shape]:
    """The shapes of all parameters."""
    d, f = size.d_model, size.d_ff
    layer: list[Shape] = [(d,), *[(d, d)] * 4, (d,), (f, d), (f, d), (d, f)]
    return [(vocabulary, d), *layer * size.layers, (d,), (vocabulary, d)]


def parameters(size: Size, vocabulary: int = VOCABULARY) -> int:
    """Elements of all parameters."""
    d = size.d_model
    return size.layers * (4 * d * d + 3 * d * size.d_ff + 2 * d) + d + 2 * vocabulary * d


def forward_operations(size: Size, batch: Batch, vocabulary: int = VOCABULARY) -> int:
    """Floating-point operations of a forward on one rank: additions and multiplications of matrix products."""
    d, tokens = size.d_model, batch.tokens
    matrices = 2 * tokens * (4 * d * d + 3 * d * size.d_ff)
    attention = 4 * tokens * batch.length * d
    return size.layers * (matrices + attention) + 2 * tokens * d * vocabulary


def step_operations(size: Size, batch: Batch, vocabulary: int = VOCABULARY) -> int:
    """The same for forward and backward."""
    return 3 * forward_operations(size, batch, vocabulary)


def activation_bytes(size: Size, batch: Batch, vocabulary: int = VOCABULARY) -> int:
    """Bytes that autograd saves in a forward in float32, the parameters not among them."""
    d, tokens = size.d_model, batch.tokens
    rotary = _ROTARY_TENSORS * batch.length * (d // size.heads // 2)
    layer = 11 * tokens * d + 4 * tokens * size.d_ff + (size.heads + 2) * tokens + rotary
    last_norm_and_loss = 3 * tokens * d + tokens + tokens * vocabulary
    return ELEMENT_BYTES * (size.layers * layer + last_norm_and_loss) + 2 * _INDEX_BYTES * tokens


def largest_batch(size: Size, length: int, strategy: str, world_size: int, memory: float) -> int:
    """The most sequences of a rank whose states and activations fit into `memory` bytes; 0 if none do."""
    left = memory - paper(strategy, parameters(size), world_size).total
    one = activation_bytes(size, Batch(1, length))
    return max(0, int(left // one))
