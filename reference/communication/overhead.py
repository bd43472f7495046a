"""A model of the cost of bucketed communication: how long all-reduces run after backward, and the best bucket size.

**Setting.** Backward computes `s` bytes of gradients, in `n_b` buckets of equal size. Full buckets are sent one after
the other. To send one takes `s / (n_b w)` seconds for its bytes, at a bandwidth of `w` bytes per second, and `o`
seconds for the call, at any size. The model assumes that backward needs as long to compute a bucket's gradients as it
takes to send the bucket's bytes. Then neither side waits for the other, and the time that is left at the end is the
cost of communication itself.

**Derivation.** Let `c = s / (n_b w)`. Backward fills bucket k at time `k c`, and the last one at `n_b c`. The first
bucket is sent from `c` to `2 c + o`. At that time the second one is full (because `2 c <= 2 c + o`), so it is sent
next, until `3 c + 2 o`. Each bucket takes `c + o`, so the last one is sent at `(n_b + 1) c + n_b o`. Backward ends at
`n_b c`. The difference is

    overhead(n_b) = c + n_b o = s / (n_b w) + n_b o,

the time for the bytes of the last bucket, which no computation hides, and the time of all calls. The derivative with
respect to `n_b` is `-s / (n_b^2 w) + o`. It is zero at `n_b = sqrt(s / (w o))`, where the second derivative is
positive. Then each bucket has `s / n_b = sqrt(s w o)` bytes, and the overhead is `2 sqrt(s o / w)`.

Source: the CS336 assignment on systems, section on bucketed gradients.
"""

import math
from collections.abc import Sequence

import torch


def ddp_overhead(s: float, w: float, o: float, n_b: float) -> float:
    """Seconds from the end of backward until the last bucket is sent.

    Args:
        s: size of all gradients, in bytes; 0 or more.
        w: bandwidth of an all-reduce, in bytes of gradients per second; positive.
        o: time of an all-reduce without its bytes, in seconds; 0 or more.
        n_b: number of buckets; positive.

    Raises:
        ValueError: an argument is out of its range.
    """
    _check(s=s, w=w, o=o)
    if not n_b > 0:
        raise ValueError(f"n_b = {n_b}: the number of buckets must be positive")
    return s / (n_b * w) + n_b * o


def optimal_bucket_size(s: float, w: float, o: float) -> float:
    """The bytes per bucket at which `ddp_overhead` is smallest; more than `s` if a single bucket is best.

    Arguments and errors are those of `ddp_overhead`.
    """
    _check(s=s, w=w, o=o)
    return math.sqrt(s * w * o)


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """The bandwidth `w` and the overhead `o` that fit measured all-reduces best: `seconds = sizes / w + o`.

    The fit minimizes the squares of the relative errors. Sizes span orders of magnitude, so with absolute errors the
    largest sizes alone would decide, where `o` is too small to be seen. If noise makes `o` negative, it is set to zero.

    Args:
        sizes: size of each all-reduce, in bytes.
        seconds: time of each all-reduce.

    Returns:
        w in bytes per second, and o in seconds.

    Raises:
        ValueError: there are fewer than two different sizes, a time is not positive, or time does not grow with size.
    """
    if len(set(sizes)) < 2:  # noqa: PLR2004  # a line has two points
        raise ValueError(f"all-reduces of {len(set(sizes))} different sizes: bandwidth and overhead need at least 2")
    if min(seconds) <= 0:
        raise ValueError(f"an all-reduce in {min(seconds)} s: times must be positive")
    size, time = torch.tensor(sizes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([size / time, 1 / time], dim=1)  # columns @ (1 / w, o) is 1 where the fit is exact
    slope, overhead = torch.linalg.lstsq(columns, torch.ones_like(time)[:, None]).solution.flatten().tolist()
    if overhead < 0:
        slope, overhead = float(columns[:, 0].sum() / columns[:, 0].square().sum()), 0.0
    if slope <= 0:
        raise ValueError("larger all-reduces took no longer: measure larger sizes, and more repetitions")
    return 1 / slope, overhead


def _check(*, s: float, w: float, o: float) -> None:
    if not (s >= 0 and o >= 0 and w > 0):
        raise ValueError(f"s = {s}, w = {w}, o = {o}: s and o must be 0 or more, w must be positive")
