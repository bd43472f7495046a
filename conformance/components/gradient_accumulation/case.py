"""What `gradient_accumulation` is asked: optimizer steps over micro-batches. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Literal

from conformance.scenarios.drawn import Case


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
