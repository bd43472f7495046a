"""A check of synchronised batch norm far from zero, in float32, where the usual formula for the variance fails.

**The mistake.** E[x^2] - E[x]^2 takes the difference of two numbers near M^2, each rounded to a multiple of its
spacing: with means M from 2^13 on, of 8. The cases have a variance of 1 or little more (`feed`), so what comes out is
0, 8 or less than nothing, and an output that is off by more than its own size.

**What rounding may do.** Let u = 2^-24, n the values of a channel on all W ranks, M the largest of them in magnitude, m
and v their mean and variance, s^2 = v + eps. To any order of summation (Higham, "Accuracy and Stability of Numerical
Algorithms", sections 1.9 and 4.2; Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", 1983):

- the mean, of all values or by way of the ranks' means, takes at most n + W + 3 roundings of numbers up to M: it is off
  by d = (n + W + 3) u M at most;
- the variance about such a mean, in two passes or by Chan's combination of the ranks' variances and means, is off by
  d^2 for the mean, by 4 d sqrt(v) + 4 d^2 where differences of two such means are squared, and by n + W + 6 roundings
  of itself;
- the output w (x - mean) / s + b, or a x + (b - a mean) with a = w / s as torch computes it, carries both errors, and 6
  roundings of numbers up to |w| M / s.

In 3,000 cases with four ranks at most, two passes, Welford's and Chan's ways, and torch's own batch norm came to a
sixth of these limits at most; the mistake, also with squares that are summed well or subtracted in one rounding, or
where only the ranks' statistics are combined so, to six times the limit at least. Nothing is asked of gradients here.
"""

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.sync_batchnorm.whole_batch import whole
from conformance.oracle.tolerance import Limits, unit_roundoff
from conformance.workload.numbers import Tensors, under

_ADVICE = (
    "E[x^2] - E[x]^2 cancels where the mean is large against the spread. Reduce the mean first and the squares of "
    "`x - mean` then, or gather each rank's count, mean and variance and combine them (Chan et al.), or sum in float64."
)


def statistics_far_from_zero(trial: CaseTrial) -> None:
    """In float32 too, mean and variance are exact where the mean is large against the spread."""
    limits, expected = rounding(trial), whole(trial)
    mean = float(torch.cat([given["x/0"] for given in trial.given]).double().mean())
    for rank, answer in enumerate(trial.answers):
        end = under(answer, f"end/{trial.case.prefix}")
        pairs = {
            "output": (answer["output/0"], expected.outputs[0][rank]),
            "running mean": (end["running_mean"][None], expected.state["running_mean"][None]),
            "running variance": (end["running_var"][None], expected.state["running_var"][None]),
        }
        for kind, (seen, right) in pairs.items():
            wrong = first_mismatch(_by_channel(seen), _by_channel(right), _limits(limits[kind]))
            if wrong:
                raise Violation(
                    f"On rank {rank}, with inputs in float32 whose mean is about {mean:.0f} and whose spread is about "
                    f"1, the {kind} of {wrong.name} is not that of one process: it {wrong.words}. Rounding explains "
                    f"{float(limits[kind].max()):.2g}.",
                    _ADVICE,
                )


def rounding(trial: CaseTrial) -> Tensors:
    """Return how far rounding to float32 may take what the norm gives, by channel, in absolute terms."""
    case, start = trial.case, {name: value.double() for name, value in trial.given[0].items()}
    x = torch.cat([given["x/0"] for given in trial.given]).double().transpose(0, 1).flatten(1)
    u, n, most, variance = unit_roundoff("float32"), x.shape[1], x.abs().amax(1), x.var(1, correction=0)
    roundings = n + case.world_size
    off = (roundings + 3) * u * most
    off_variance = 4 * off * variance.sqrt() + 5 * off**2 + (roundings + 6) * u * variance
    scale, least = (variance + case.eps).sqrt(), (variance + case.eps - off_variance).sqrt()
    apart = (x - x.mean(1, keepdim=True)).abs().amax(1)
    output = (off + 6 * u * most) / least + apart * (1 / least - 1 / scale)
    return {
        "output": start["weight"].abs() * output + 4 * u * start["bias"].abs(),
        "running mean": case.momentum * off + 4 * u * (most + start["running_mean"].abs()),
        "running variance": case.momentum * off_variance * n / (n - 1) + 6 * u * (variance + start["running_var"]),
    }


def _by_channel(values: torch.Tensor) -> Tensors:
    return {f"channel {number}": channel for number, channel in enumerate(values.transpose(0, 1))}


def _limits(errors: torch.Tensor) -> Limits:
    return {f"channel {number}": float(limit) for number, limit in enumerate(errors)}
