"""How far two results may differ before the difference is more than rounding.

**float64, complex128.** Training on a concatenated batch and training on its shards differ only by rounding: at most
4e-14 of a tensor's largest element in 5,000 drawn scenarios (gradients and parameters, up to four steps and four
ranks). The limit 1e-9 leaves four orders of magnitude for less stable optimizers. The smallest known mistake, a
gradient that passes through float32, exceeds the limit ten times on most draws.

**float32, bfloat16, float16.** Here rounding is as large as the effect of a step. An adaptive optimizer makes a step of
size lr from the sign of an element that is only rounding, so two correct trainings drift apart without bound. Therefore
each step is compared with the step before it: the oracle averages the shards' own gradients, and continues from the
values of rank 0 as long as they are right (see `oracle.train`). What remains is the rounding of one step. With the unit
roundoff u (half the distance from 1 to the next number: 2^-24, 2^-8 and 2^-11), and to first order in u:

- *Averaging* W gradients takes W - 1 additions in any order, and a division before or after them, or a multiplication
  by a rounded 1/W. These are at most W + 1 roundings, so the error is at most (W + 1) u times the mean of |g_r|
  (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2). The scale is the mean of magnitudes and not
  the magnitude of the mean, because shards may cancel.
- *Each rank's own gradient* comes from the same operations on the same numbers as the oracle's. But a wrapper may
  change the strides of parameters, and other strides mean another order of summation. Forward and backward round each
  layer's output, and sum `terms` products: 2 u + terms u' per layer, where kernels accumulate with u' = min(u, 2^-24).
  These errors are relative to the largest gradients of a layer, not to a gradient that is small because samples cancel:
  the scale of a tensor is at least a sixteenth of the largest tensor of the step. How much the other layers amplify the
  errors depends on the numbers, so it is measured: the oracle computes each gradient in float64 too, and another order
  of summation may have 8 times the error of the oracle's own on the worst tensor. (With transposed weights and permuted
  batches, correct gradients reached at most a fifth of the limit in 63,000 comparisons.) If the output of a single rank
  is very near its target, a sum that happens to round to the exact value underestimates the error of other orders: of
  4,300 drawn steps, one exceeded this limit 2.4 times. A world of one rank averages nothing, so there an error of 2e-5
  of the largest gradient is allowed.
- *The optimizer's step* p' = p - s rounds p at most twice (weight decay, the last subtraction), and s at most 10 times
  (AdamW: three roundings of the first moment, half of three of the second, root, division, eps, quotient, product). The
  errors of the state accumulate, so after t steps there are 10 t. |s| is at most lr times the largest (movement / lr)
  so far, plus weight decay. Both sides round: 2 u (2 |p| + 10 t |s|).

In each case the difference is the largest absolute difference of a tensor's elements, relative to the largest element
of the expected tensor. A single element may be tiny because its terms cancel, so a limit relative to each element would
reject correct code. In float64, for the same reason, the scale of a tensor is at least a thousandth of the largest
tensor that is compared with it.

**Lossy communication.** A library may claim that it sends gradients in fewer bits. The claimed share of a tensor's
largest element is added to the limit of its gradient; training is followed in every dtype. A sharded optimizer sends
parameters, so there the share is added to the limit of parameters.

**Not vacuous.** A scenario is used only if the known mistakes exceed the limit by the factor that
`vacuity_factor` returns.
"""

import math
from collections.abc import Iterable, Mapping

import torch

from conformance.scenarios.layers import Dtype
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors, torch_dtype, wide

Limits = dict[str, float]
TOLERANCE = 1e-9
_SCALE_FLOOR = 1e-3
_SCALE_FLOOR_NARROW = 1 / 16
_ACCUMULATED = 2.0**-24
_ROUNDINGS_OF_UPDATE = 10
_OTHER_ORDERS = 8
_ALONE = 2e-5


def scale_of(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest absolute element of some tensors; 0.0 if there are none."""
    return max((float(tensor.abs().max()) for tensor in tensors if tensor.numel()), default=0.0)


def difference(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference of two tensors of one shape; infinity if either holds NaN."""
    if not expected.numel():
        return 0.0
    largest = float((wide(observed) - wide(expected)).abs().max())
    return math.inf if math.isnan(largest) else largest


def equal(observed: torch.Tensor, expected: torch.Tensor, limit: float) -> bool:
    """Return whether two tensors have the same shape and differ at most by `limit`, in absolute terms."""
    return observed.shape == expected.shape and difference(observed, expected) <= limit


def vacuity_factor(scenario: Scenario) -> float:
    """Return the factor by which a mistake must exceed the limit on this scenario."""
    in_16_bits = {scenario.model.dtype, *scenario.model.dtypes.values()} & {"bfloat16", "float16"}
    return 4.0 if in_16_bits or scenario.lossy else 1000.0


def float64_limits(expected: Tensors) -> Limits:
    """Return, by name, the largest absolute difference that rounding in float64 explains."""
    floor = _SCALE_FLOOR * scale_of(expected.values())
    return {name: TOLERANCE * max(scale_of([tensor]), floor) for name, tensor in expected.items()}


def gradient_limits(scenario: Scenario, magnitudes: Mapping[str, float], errors: Mapping[str, float]) -> Limits:
    """Return, by name, how far rounding may take averaged gradients, and communication that is lossy.

    Args:
        scenario: decides the number of terms and operations.
        magnitudes: by parameter, the largest element of the mean over ranks of the gradients' absolute values.
        errors: by parameter, how far the ranks' gradients are from the same gradients computed in float64.
    """
    spec = scenario.model
    units = {name: unit_roundoff(dtype) for name, dtype in spec.dtypes.items()}
    coarsest = max(unit_roundoff(spec.dtype), *units.values())
    samples = sum(map(scenario.batch_of, range(scenario.world_size)))
    terms = max(spec.widths) + samples * scenario.micro_batches
    own = len(spec.layers) * (2 * coarsest + terms * min(coarsest, _ACCUMULATED))
    floor = _SCALE_FLOOR_NARROW * max(magnitudes.values(), default=0.0)
    sizes = {name: max(magnitude, floor) for name, magnitude in magnitudes.items()}
    measured = max((errors[name] / size for name, size in sizes.items() if size), default=0.0)
    own = max(own, _OTHER_ORDERS * measured, _ALONE if scenario.world_size == 1 else 0.0)
    lost = 0.0 if scenario.replicated else scenario.lossy
    return {
        name: (scenario.world_size + 1) * units[name] * magnitude + (own + lost) * sizes[name]
        for name, magnitude in magnitudes.items()
    }


def parameter_limit(dtype: Dtype, size: float, update: float, steps: int) -> float:
    """Return how far rounding may take a parameter in one step.

    Args:
        dtype: the dtype of the parameter.
        size: the parameter's largest element, before or after the step.
        update: a bound on the largest element of the step, if its terms did not cancel.
        steps: the number of steps so far, this one included.
    """
    return 2 * unit_roundoff(dtype) * (2 * size + _ROUNDINGS_OF_UPDATE * steps * update)


def unit_roundoff(dtype: Dtype) -> float:
    """Return the largest relative error of rounding to nearest."""
    return float(torch.finfo(torch_dtype(dtype)).eps) / 2


def is_rounded(seen: torch.Tensor, dtype: torch.dtype, world_size: int = 1) -> bool:
    """Return whether `dtype` can represent all values of a tensor, or of the tensor times the world size."""
    seen = torch.view_as_real(seen) if seen.is_complex() else seen
    return any(torch.equal((seen * times).to(dtype).to(seen.dtype), seen * times) for times in (1, world_size))
