"""The numbers of a case: what each rank is given."""

import torch

from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.workload.numbers import Tensors, generator_of

CHANNELS = 3


def draw(case: SyncBatchNormCase, seed: int, rank: int) -> Tensors:
    """Draw what the norm starts with, the same on all ranks, and inputs and output gradients of this rank's own."""
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    numbers = 0.5 + torch.rand(4, CHANNELS, generator=shared, dtype=torch.float64)
    start = dict(zip(("weight", "bias", "running_mean", "running_var"), numbers, strict=True))
    start["num_batches_tracked"] = torch.tensor(3)
    given: Tensors = {name: start[name] for name in case.state}
    shape = (case.sizes[rank], CHANNELS, *(3 + rank * case.stretched, 2, 2)[: case.dimensions - 2])
    for step in range(case.steps):
        x, gradient = torch.randn(2, *shape, generator=own, dtype=torch.float64)
        given |= {f"x/{step}": (1 + rank) * x + rank, f"gradient/{step}": gradient}
    return _far(given, shared, rank) if case.far else given


def _far(given: Tensors, shared: torch.Generator, rank: int) -> Tensors:
    """Take inputs far from zero, with a variance of 1 on each rank and means half of 1 apart; all in float32."""
    mean = 8500 + 1000 * torch.rand(CHANNELS, generator=shared, dtype=torch.float64) + rank / 2
    for name in [name for name in given if name.startswith("x/")]:
        x = given[name].transpose(0, 1).flatten(1)
        variance, own = torch.var_mean(x, 1, correction=0, keepdim=True)
        x = (x - own) / variance.sqrt() + mean[:, None]
        given[name] = x.view_as(given[name].transpose(0, 1)).transpose(0, 1).contiguous()
    return {name: value.float() if value.is_floating_point() else value for name, value in given.items()}
