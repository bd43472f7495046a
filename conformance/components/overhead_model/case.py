"""What `overhead_model` is asked, and the numbers that it is given."""

from dataclasses import dataclass

import torch

from conformance.scenarios.drawn import Case
from conformance.workload.numbers import Tensors, generator_of

_RANGES = (
    (6.0, 4.0),
    (8.0, 3.0),
    (-6.0, 3.0),
    (0.3, 1.7),
)  # of s, w, o, n_b: the lowest power of ten, and the range


@dataclass(frozen=True, repr=False)
class OverheadCase(Case):
    """One gradient size, bandwidth, overhead per call and number of buckets: two or more, or if `single`, one."""

    single: bool = False


def numbers(case: OverheadCase, seed: int, rank: int) -> Tensors:
    """Draw s (bytes), w (bytes per second), o (seconds) and a number of buckets, in ranges met in practice."""
    drawn = torch.rand(4, generator=generator_of(seed + rank), dtype=torch.float64).tolist()
    *rates, buckets = (10 ** (low + wide * x) for (low, wide), x in zip(_RANGES, drawn, strict=True))
    given = {name: torch.tensor(x, dtype=torch.float64) for name, x in zip("swo", rates, strict=True)}
    return given | {"n_b": torch.tensor(1 if case.single else max(2, int(buckets)))}
