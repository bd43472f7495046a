"""When two float64 results count as equal.

Training in float64 on a concatenated batch and on its shards differs by rounding alone: at most 4e-14 of a tensor's
largest element in some 5,000 drawn scenarios (gradients and parameters, up to four steps, up to four ranks). The limit
1e-9 leaves four orders of magnitude to less tame optimizers; the smallest of the known mistakes, a gradient that passes
through float32, is an order above it on most draws.

The difference is measured per tensor in the maximum norm, relative to the largest element of the expected tensor: a
single element may be tiny by cancellation, so an element-wise relative limit would reject correct code. For the same
reason a whole tensor's scale is taken to be at least a thousandth of the largest among its fellows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

TOLERANCE = 1e-9
VACUITY_FACTOR = 1000.0
_SCALE_FLOOR = 1e-3


@dataclass(frozen=True)
class Difference:
    """How far an observed tensor is from the expected one: the largest absolute difference, and that over the scale."""

    absolute: float
    relative: float

    @property
    def negligible(self) -> bool:
        """Whether rounding explains the difference; a NaN does not."""
        return self.relative <= TOLERANCE

    @property
    def obvious(self) -> bool:
        """Whether the difference is so large that nobody could mistake it for rounding."""
        return self.relative > VACUITY_FACTOR * TOLERANCE


def scale_of(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest absolute element among tensors that are compared with one another (0.0 for none)."""
    return max((float(tensor.abs().max()) for tensor in tensors if tensor.numel()), default=0.0)


def difference(observed: torch.Tensor, expected: torch.Tensor, fellows: float = 0.0) -> Difference:
    """Compare two tensors of one shape.

    Args:
        observed: what a rank reported.
        expected: what the oracle computed.
        fellows: `scale_of` the tensors that `expected` belongs to, such as all gradients of a step.

    Returns:
        The difference; infinite when `observed` holds a NaN or an infinity that `expected` does not.
    """
    if not expected.numel():
        return Difference(0.0, 0.0)
    absolute = float((observed.double() - expected.double()).abs().max())
    if absolute != absolute:  # noqa: PLR0124  only NaN differs from itself
        return Difference(float("inf"), float("inf"))
    scale = max(scale_of([expected]), _SCALE_FLOOR * fellows)
    return Difference(absolute, absolute / scale if scale else (0.0 if absolute == 0.0 else float("inf")))


def equal(observed: torch.Tensor, expected: torch.Tensor, fellows: float = 0.0) -> bool:
    """Return whether `observed` has the shape of `expected` and differs by no more than rounding."""
    return observed.shape == expected.shape and difference(observed, expected, fellows).negligible
