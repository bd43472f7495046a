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
        uneven: whether each micro-batch has one sample more than the one before.
        scaled: whether a gradient scaler is given.
        overflow: a rank whose gradients of step 0 are infinite; -1 for none.
        at: where the wrapper averages, or decides to: in `backward`, in `forward` as torch's own, or at `finish`.
    """

    steps: int = 1
    micro_batches: int = 2
    samples: int = 1
    uneven: bool = False
    scaled: bool = False
    overflow: int = -1
    at: Literal["backward", "forward", "finish"] = "backward"
    shrinking: bool = False

    def micro(self, step: int) -> int:
        """Return how many micro-batches a step has."""
        return self.micro_batches - (self.shrinking and step == self.steps - 1)

    def samples_of(self, micro: int) -> int:
        """Return how many samples a micro-batch has."""
        return self.samples + self.uneven * micro

    def weight(self, step: int, micro: int) -> float:
        """Return how much a micro-batch counts, by its samples, where on average each counts 1."""
        return self.samples_of(micro) * self.micro(step) / sum(map(self.samples_of, range(self.micro(step))))

    def overflows(self, step: int) -> bool:
        """Return whether a rank has infinite gradients in a step, so that all ranks must skip it."""
        return step == 0 and self.overflow >= 0


def numbers(case: AccumulationCase, seed: int, rank: int) -> Tensors:
    """Draw weights that all ranks share, and micro-batches of this rank's own."""
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    given = {name: torch.randn(shape, generator=shared, dtype=torch.float64) for name, shape in small_network().items()}
    for step in range(case.steps):
        for micro in range(case.micro(step)):
            samples = case.samples_of(micro)
            x = torch.randn(samples, FEATURES, generator=own, dtype=torch.float64)
            y = torch.randn(samples, 1, generator=own, dtype=torch.float64) + rank + micro
            broken = step == 0 and micro == 0 and rank == case.overflow
            given |= {f"x/{step}/{micro}": x * torch.inf if broken else x, f"y/{step}/{micro}": y}
    return given
