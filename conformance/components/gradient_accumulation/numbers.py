"""The numbers of a case: what each rank is given."""

import torch

from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.workload.numbers import FEATURES, Tensors, generator_of, small_network

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, SCALE = 0.1, 0.5, 0.2, 2.0**10


def draw(case: AccumulationCase, seed: int, rank: int) -> Tensors:
    """Draw weights that all ranks share, and micro-batches of this rank's own."""
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    given = {name: torch.randn(shape, generator=shared, dtype=torch.float64) for name, shape in small_network().items()}
    for step in range(case.steps):
        for micro in range(case.micro(step)):
            x = torch.randn(case.samples, FEATURES, generator=own, dtype=torch.float64)
            y = torch.randn(case.samples, 1, generator=own, dtype=torch.float64) + rank + micro
            broken = step == 0 and micro == 0 and rank == case.overflow
            given |= {f"x/{step}/{micro}": x * torch.inf if broken else x, f"y/{step}/{micro}": y}
    return given
