"""The numbers of a case: what each rank is given."""

import torch

from conformance.components.distributed_sampler.case import SamplerCase
from conformance.workload.numbers import Tensors


def draw(case: SamplerCase, seed: int, rank: int) -> Tensors:
    """Draw the seed that all ranks share, 0 in the simplest case, and one for each rank's own global generator."""
    return {"seed": torch.tensor(seed % 1000 if case.seed else 0), "own": torch.tensor(seed % 1000 + 1 + rank)}
