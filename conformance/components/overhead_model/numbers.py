"""The numbers of a case: what each rank is given."""

import torch

from conformance.components.overhead_model.case import OverheadCase
from conformance.workload.numbers import Tensors, generator_of

_RANGES = ((6.0, 4.0), (8.0, 3.0), (-6.0, 3.0), (0.3, 1.7))


def draw(case: OverheadCase, seed: int, rank: int) -> Tensors:
    """Draw s (bytes), w (bytes per second), o (seconds) and a number of buckets, in ranges met in practice."""
    numbers = torch.rand(4, generator=generator_of(seed + rank), dtype=torch.float64).tolist()
    s, w, o, buckets = (10 ** (low + wide * x) for (low, wide), x in zip(_RANGES, numbers, strict=True))
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in zip("swo", (s, w, o), strict=True)} | {
        "n_b": torch.tensor(1 if case.single else max(2, int(buckets)))
    }
