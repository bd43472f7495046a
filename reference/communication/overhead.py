"""What bucketed communication costs: how long all-reduces still run after backward, and the bucket size that is best.

**Setting.** Backward produces `s` bytes of gradients, gathered in `n_b` buckets of equal size. A bucket is sent when it
is full, one after the other. Sending one takes `s / (n_b w)` for its bytes at `w` bytes per second, and `o` seconds
more, whatever its size, for the call. Computing a bucket's gradients is taken to last as long as sending its bytes:
then neither side waits for the other, and what is left at the end is the price of communication itself.

**Derivation.** Let `c = s / (n_b w)`. Backward has filled bucket k at time `k c`, the last at `n_b c`. The first bucket
is sent from `c` to `2 c + o`. By then the second is full (since `2 c <= 2 c + o`), so it follows at once, and is
through at `3 c + 2 o`; each one takes `c + o`, and the last is through at `(n_b + 1) c + n_b o`. Beyond backward's own
`n_b c` this leaves

    overhead(n_b) = c + n_b o = s / (n_b w) + n_b o

the bytes of the last bucket, which nothing hides, and every call's overhead. The derivative by `n_b` is
`-s / (n_b^2 w) + o`, zero at `n_b = sqrt(s / (w o))`, where the second derivative is positive; that many buckets hold
`s / n_b = sqrt(s w o)` bytes each, and the overhead is `2 sqrt(s o / w)`.

Source: the CS336 assignment on systems, section on bucketed gradients.
"""

import math
from collections.abc import Sequence

import torch


def ddp_overhead(s: float, w: float, o: float, n_b: float) -> float:
    """Seconds from the end of backward until the last bucket is through.

    Args:
        s: gradients, in bytes.
        w: bandwidth of an all-reduce, in bytes of gradients per second.
        o: time that each all-reduce takes beside its bytes, in seconds.
        n_b: number of buckets.

    Raises:
        ValueError: an argument is out of its range: s and o from 0, w and n_b above.
    """
    _check(s=s, w=w, o=o)
    if not n_b > 0:
        raise ValueError(f"n_b = {n_b}: there must be buckets")
    return s / (n_b * w) + n_b * o


def optimal_bucket_size(s: float, w: float, o: float) -> float:
    """Bytes per bucket for which `ddp_overhead` is least; more than `s` if a single bucket is best.

    Arguments and errors as for `ddp_overhead`.
    """
    _check(s=s, w=w, o=o)
    return math.sqrt(s * w * o)


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """The bandwidth `w` and the overhead `o` that explain measured all-reduces best: `seconds = sizes / w + o`.

    Least squares of the relative errors: sizes span orders of magnitude, and absolute errors would let the largest
    decide alone, of which `o` is no visible part. An `o` below zero, which noise can suggest, becomes zero.

    Args:
        sizes: size of each all-reduce, in bytes.
        seconds: what it took.

    Returns:
        w in bytes per second, and o in seconds.

    Raises:
        ValueError: there are not two different sizes, a time is not positive, or time does not grow with size.
    """
    if len(set(sizes)) < 2:  # noqa: PLR2004  # a line has two points
        raise ValueError(f"all-reduces of {len(set(sizes))} different sizes: bandwidth and overhead need at least 2")
    if min(seconds) <= 0:
        raise ValueError(f"an all-reduce in {min(seconds)} s: times must be positive")
    size, time = torch.tensor(sizes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([size / time, 1 / time], dim=1)  # columns @ (1 / w, o) would be 1 if all fitted
    slope, overhead = torch.linalg.lstsq(columns, torch.ones_like(time)[:, None]).solution.flatten().tolist()
    if overhead < 0:
        slope, overhead = float(columns[:, 0].sum() / columns[:, 0].square().sum()), 0.0
    if slope <= 0:
        raise ValueError("larger all-reduces took no longer: measure larger sizes, and more often")
    return 1 / slope, overhead


def _check(*, s: float, w: float, o: float) -> None:
    if not (s >= 0 and o >= 0 and w > 0):
        raise ValueError(f"s = {s}, w = {w}, o = {o}: bytes and overhead are 0 or more, bandwidth is positive")
