"""How far two results may be apart before it is not rounding.

**float64, complex128.** Training on a concatenated batch and on its shards differs by rounding alone: at most 4e-14 of
a tensor's largest element in some 5,000 drawn scenarios (gradients and parameters, up to four steps, up to four ranks).
The limit 1e-9 leaves four orders of magnitude to less tame optimizers; the smallest of the known mistakes, a gradient
that passes through float32, is an order above it on most draws.

**float32, bfloat16, float16.** Here rounding is as large as the effects of steps, and an adaptive optimizer makes a
step of size lr out of the sign of an element that is all rounding: two correct trainings drift apart without bound. So
each step is held to what came before it: the oracle averages the shards' own gradients, and goes on from what rank 0
has wherever that is equal (see `oracle.train`). What is left is the rounding of one step. With the unit roundoff u
(half the distance from 1 to the next number: 2^-24, 2^-8 and 2^-11), and to first order in it:

- *Averaging* W gradients takes W - 1 additions, in any order, and a division, before or after, or a multiplication by
  a rounded 1/W: W + 1 roundings, hence at most (W + 1) u times the mean of |g_r| (Higham, "Accuracy and Stability of
  Numerical Algorithms", section 4.2). This is the reason why the scale is the mean of magnitudes, not the magnitude of
  the mean: shards may cancel.
- *Each rank's own gradient* is computed by the same operations on the same numbers as the oracle's, but a wrapper may
  lay parameters out anew, and other strides mean another order of summation. Forward and backward round each layer's
  output, and sum `terms` products: 2 u + terms u' per layer, where u' = min(u, 2^-24) is what kernels accumulate in.
  These errors have the size of the largest gradients of a layer, not of one that is small by cancellation over the
  batch: the scale of a tensor is taken to be at least a sixteenth of the largest among its fellows. How much the layers
  in between amplify them depends on the numbers, so it is measured: the oracle computes each gradient in float64 too,
  and another order may err 8 times as much as its own did on the worst of the tensors. (With weights stored transposed
  and batches permuted, correct gradients came to a fifth of the limit at most in 63,000 comparisons.) One rank's
  output may nearly meet its target, and then an order that happens to be exact says nothing of others: of 4,300 drawn
  steps, one was 2.4 times off that. Nothing is averaged in a world of one, and 2e-5 of the largest gradient is allowed.
- *The optimizer's step* p' = p - s rounds p at most twice (weight decay, the last subtraction), and s at most 10 times
  (AdamW: three roundings of the first moment, half of three of the second, root, division, eps, quotient, product). The
  errors of state carry over, so after t steps it is 10 t. |s| is at most lr times the largest (movement / lr) so far
  plus weight decay. Both sides round: 2 u (2 |p| + 10 t |s|).

In each case the difference is measured per tensor in the maximum norm, relative to the largest element of the expected
tensor: a single element may be tiny by cancellation, so an element-wise relative limit would reject correct code. In
float64, for the same reason, a tensor's scale is taken to be at least a thousandth of the largest among its fellows.

**Not vacuous.** `VACUITY_FACTOR` says how many times the limit a known mistake must lie off, or a scenario is not used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from conformance.scenarios.layers import Dtype
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors, torch_dtype, wide

Limits = dict[str, float]
TOLERANCE = 1e-9
VACUITY_FACTOR: dict[Dtype, float] = {
    "float64": 1000.0,
    "float32": 1000.0,
    "bfloat16": 4.0,
    "float16": 4.0,
    "complex128": 1000.0,
}
_SCALE_FLOOR = 1e-3
_SCALE_FLOOR_NARROW = 1 / 16
_ACCUMULATED = 2.0**-24
_ROUNDINGS_OF_UPDATE = 10
_OTHER_ORDERS = 8
_ALONE = 2e-5


@dataclass(frozen=True)
class Difference:
    """How far an observed tensor is from the expected one: the largest absolute difference, and that over the scale.

    `limit` is the largest absolute difference that rounding explains.
    """

    absolute: float
    relative: float
    limit: float = 0.0

    @property
    def negligible(self) -> bool:
        """Whether rounding explains the difference; a NaN does not."""
        return self.absolute <= self.limit

    def obvious(self, factor: float) -> bool:
        """Return whether the difference is this many times what rounding explains, so that nobody could mistake it."""
        return self.absolute > factor * self.limit


def scale_of(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest absolute element among tensors that are compared with one another (0.0 for none)."""
    return max((float(tensor.abs().max()) for tensor in tensors if tensor.numel()), default=0.0)


def difference(
    observed: torch.Tensor, expected: torch.Tensor, fellows: float = 0.0, *, limit: float | None = None
) -> Difference:
    """Compare two tensors of one shape.

    Args:
        observed: what a rank reported.
        expected: what the oracle computed.
        fellows: `scale_of` the tensors that `expected` belongs to, such as all gradients of a step.
        limit: the largest absolute difference that counts as rounding; without it, that of float64.

    Returns:
        The difference; infinite when `observed` holds a NaN or an infinity that `expected` does not.
    """
    if not expected.numel():
        return Difference(0.0, 0.0)
    absolute = float((wide(observed) - wide(expected)).abs().max())
    scale = max(scale_of([expected]), _SCALE_FLOOR * fellows)
    limit = TOLERANCE * scale if limit is None else limit
    if absolute != absolute:  # noqa: PLR0124  only NaN differs from itself
        return Difference(float("inf"), float("inf"), limit)
    return Difference(absolute, absolute / scale if scale else (0.0 if absolute == 0.0 else float("inf")), limit)


def equal(observed: torch.Tensor, expected: torch.Tensor, fellows: float = 0.0, *, limit: float | None = None) -> bool:
    """Return whether `observed` has the shape of `expected` and differs by no more than rounding."""
    return observed.shape == expected.shape and difference(observed, expected, fellows, limit=limit).negligible


def vacuity_factor(scenario: Scenario) -> float:
    """Return how many times the limit a mistake must lie off on this scenario."""
    spec = scenario.model
    return min(VACUITY_FACTOR[dtype] for dtype in (spec.dtype, *spec.dtypes.values()))


def float64_limits(expected: Tensors) -> Limits:
    """Return the largest absolute difference of each of these tensors that rounding in float64 explains."""
    fellows = scale_of(expected.values())
    return {name: TOLERANCE * max(scale_of([tensor]), _SCALE_FLOOR * fellows) for name, tensor in expected.items()}


def gradient_limits(scenario: Scenario, magnitudes: Mapping[str, float], errors: Mapping[str, float]) -> Limits:
    """Return how far the rounding of narrower dtypes may take averaged gradients.

    Args:
        scenario: decides the number of terms and operations.
        magnitudes: by parameter, the largest element of the mean over ranks of the gradients' absolute values.
        errors: by parameter, how far the gradients of ranks are from the same ones computed in float64.
    """
    spec = scenario.model
    units = {name: unit_roundoff(dtype) for name, dtype in spec.dtypes.items()}
    coarsest = max(unit_roundoff(spec.dtype), *units.values())
    terms = max(spec.widths) + scenario.batch * scenario.world_size
    own = len(spec.layers) * (2 * coarsest + terms * min(coarsest, _ACCUMULATED))
    floor = _SCALE_FLOOR_NARROW * max(magnitudes.values(), default=0.0)
    sizes = {name: max(magnitude, floor) for name, magnitude in magnitudes.items()}
    measured = max((errors[name] / size for name, size in sizes.items() if size), default=0.0)
    own = max(own, _OTHER_ORDERS * measured, _ALONE if scenario.world_size == 1 else 0.0)
    return {
        name: (scenario.world_size + 1) * units[name] * magnitude + own * sizes[name]
        for name, magnitude in magnitudes.items()
    }


def parameter_limit(dtype: Dtype, size: float, update: float, steps: int) -> float:
    """Return how far the rounding of a narrower dtype may take a parameter in one step.

    Args:
        dtype: the parameter's.
        size: its largest element, before or after the step.
        update: a bound on the largest element of the sum of magnitudes that the step is made of.
        steps: steps so far, this one included.
    """
    return 2 * unit_roundoff(dtype) * (2 * size + _ROUNDINGS_OF_UPDATE * steps * update)


def unit_roundoff(dtype: Dtype) -> float:
    """Return the largest relative error of rounding to nearest."""
    return float(torch.finfo(torch_dtype(dtype)).eps) / 2


def is_rounded(seen: torch.Tensor, dtype: torch.dtype, world_size: int = 1) -> bool:
    """Return whether a tensor, or it times the world size, holds only values that `dtype` can represent."""
    seen = torch.view_as_real(seen) if seen.is_complex() else seen
    return any(torch.equal((seen * times).to(dtype).to(seen.dtype), seen * times) for times in (1, world_size))
