"""Numbers that the cases of several components share."""

import torch

FEATURES = 3


def generator_of(seed: int) -> torch.Generator:
    """Return a new generator with this seed."""
    return torch.Generator().manual_seed(seed)


def small_network() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the parameters of a small network of two linear layers."""
    return {"0.weight": (2, FEATURES), "0.bias": (2,), "2.weight": (1, 2), "2.bias": (1,)}
