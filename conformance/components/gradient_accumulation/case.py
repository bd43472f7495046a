"""What `gradient_accumulation` is asked: optimizer steps over micro-batches, and the numbers that ranks are given."""

from dataclasses import dataclass
from typing import Literal

import torch

from conformance.scenarios.drawn import Case
from conformance.workload.numbers import FEATURES, Tensors, generator_of, small_network

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, SCALE = 0.1, 0.5, 0.2, 2.0**10


@dataclass(frozen=True, repr=False)
class AccumulationCase(Case):
    """Optimizer steps, each over several micro-batches.

    Attributes:
        steps: optimizer steps.
        micro_batches: per step.
        shrinking: whether the last step has one fewer, as at the end of an epoch.
        samples: of each micro-batch, on each rank.
        scaled: whether a gradient scaler is given.
        overflow: a rank whose gradients of step 0 are infinite; -1 for none.
        at: where the wrapper averages, or decides to: in `backward`, in `forward` as torch's own, or at `finish`.
    """

    steps: int = 1
    micro_batches: int = 2
    samples: int = 1
    scaled: bool = False
    overflow: int = -1
    at: Literal["backward", "forward", "finish"] = "backward"
    shrinking: bool = False

    def micro(self, step: int) -> int:
        """Return how many micro-batches a step has."""
        return self.micro_batches - (self.shrinking and step == self.steps - 1)

    def overflows(self, step: int) -> bool:
        """Return whether a rank has infinite gradients in a step, so that all ranks must skip it."""
        return step == 0 and self.overflow >= 0


def numbers(case: AccumulationCase, seed: int, rank: int) -> Tensors:
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
