"""The numbers of a case: what each rank is given."""

import torch

from conformance.components.checkpoint.case import CheckpointCase
from conformance.workload.numbers import FEATURES, Tensors, generator_of, small_network


def draw(case: CheckpointCase, seed: int, rank: int) -> Tensors:
    """Draw weights and batches that all ranks share, other weights of each rank's own to load over, and the epoch.

    Each rank also gets a seed of its own for the global generator.
    """
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    given: Tensors = {"epoch": torch.tensor(seed % 3), "own": torch.tensor(seed % 1000 + 1 + rank)}
    for name, shape in small_network().items():
        for whose, generator in (("start", shared), ("other", own)):
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            given[f"{whose}/{name.replace('2.', 'submodule.')}"] = value
    for step in range(case.before + case.after):
        given[f"x/{step}"] = torch.randn(4, FEATURES, generator=shared, dtype=torch.float64)
        given[f"y/{step}"] = torch.randn(4, 1, generator=shared, dtype=torch.float64)
    return given
