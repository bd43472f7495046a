"""What `fsdp` is asked: to train a network on tokens whose parameters are sharded; and the numbers for it."""

import math
from dataclasses import dataclass, replace

from conformance.scenarios.layers import BYTES
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors, draw_inputs


@dataclass(frozen=True, repr=False)
class FsdpCase(Scenario):
    """A training with sharded parameters: an embedding of tokens, a norm, and linear layers.

    Attributes:
        alike: whether ranks start from equal weights; their buffers are equal in any case.
        half: whether to compute in bfloat16.
        seldom_gathered: whether whole parameters are gathered before training and after the last step alone.
        weighed: whether what is in memory after wrapping, in forward and after a step is weighed.
    """

    alike: bool = True
    half: bool = False
    seldom_gathered: bool = False
    weighed: bool = False

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """The shapes of the parameters that have rows and columns."""
        return [(shape[0], shape[1]) for shape in self.model.shapes.values() if len(shape) > 1]

    @property
    def whole(self) -> list[int]:
        """How many bytes each whole matrix has, the smallest first."""
        return sorted(BYTES[self.model.dtype] * math.prod(shape) for shape in self.matrices)

    @property
    def unevenly_shared(self) -> bool:
        """Whether the ranks cannot divide the rows of some matrix evenly."""
        return any(rows % self.world_size for rows, _ in self.matrices)

    @property
    def gathered(self) -> range:
        """The steps after which whole parameters are gathered."""
        return range(self.steps - 1 if self.seldom_gathered else 0, self.steps)


def numbers(case: FsdpCase, seed: int, rank: int) -> Tensors:
    """Draw what a training with a wrapper gets, but equal buffers, and equal weights where ranks are to start alike."""
    inputs = draw_inputs(case, seed)
    return replace(inputs[rank], weights=inputs[0 if case.alike else rank].weights, buffers=inputs[0].buffers).by_name()
