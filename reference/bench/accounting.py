"""The memory of a training on paper: bytes of parameters, gradients and optimizer state that each rank keeps.

In float32, a parameter has 4 bytes, its gradient 4, and AdamW's two moments 8: 16 bytes per parameter. How many of them
a rank keeps depends on what is sharded over W ranks:

| strategy | parameters | gradients | optimizer state |
|---|---|---|---|
| `ddp`: nothing is sharded | 4 | 4 | 8 |
| `zero1`: the optimizer's state | 4 | 4 | 8 / W |
| `fsdp`: everything | 4 / W | 4 / W | 8 / W |

The formulas assume that everything divides evenly. `exact` counts what the references keep: `zero1` shards by whole
parameters, `fsdp` keeps vectors on every rank, and AdamW has a step counter for each parameter that it updates.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section 3
and figure 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reference.partition import assign_to_least_loaded

ELEMENT_BYTES = 4  # float32
ADAM_MOMENTS = 2
COUNTER_BYTES = 4  # AdamW's `step`, a float32 for each parameter
STRATEGIES = ("ddp", "zero1", "fsdp")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StateBytes:
    """Bytes that one rank keeps between steps."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer


def paper(strategy: str, parameters: int, world_size: int) -> StateBytes:
    """The formula: bytes on each rank, if everything divides evenly.

    Args:
        strategy: one of `STRATEGIES`.
        parameters: number of elements of all parameters.
        world_size: number of ranks.

    Raises:
        ValueError: there is no such strategy.
    """
    _check(strategy)
    kept = parameters * ELEMENT_BYTES / (world_size if strategy == "fsdp" else 1)
    state = ADAM_MOMENTS * parameters * ELEMENT_BYTES / (1 if strategy == "ddp" else world_size)
    return StateBytes(kept, kept, state)


def exact(strategy: str, shapes: Sequence[Shape], world_size: int, rank: int) -> StateBytes:
    """What the references keep on one rank, from the shapes of all parameters.

    Args:
        strategy: one of `STRATEGIES`.
        shapes: of all parameters, in the order of the module.
        world_size: number of ranks.
        rank: which one.

    Raises:
        ValueError: there is no such strategy.
    """
    _check(strategy)
    sizes = [math.prod(shape) for shape in shapes]
    kept = sizes
    if strategy == "fsdp":
        kept = [part(math.prod(s), world_size, rank) if len(s) > 1 else math.prod(s) for s in shapes]
    updated = _owned(sizes, world_size, rank) if strategy == "zero1" else kept
    moments = ADAM_MOMENTS * ELEMENT_BYTES * sum(updated)
    kept_bytes = ELEMENT_BYTES * sum(kept)
    return StateBytes(kept_bytes, kept_bytes, moments + COUNTER_BYTES * len(updated))


def part(size: int, world_size: int, rank: int) -> int:
    """Elements of a rank's part of a sharded parameter: equal parts, rounded up, so the last ranks may have fewer."""
    largest = -(-size // world_size)
    return min((rank + 1) * largest, size) - min(rank * largest, size)


def _owned(sizes: Sequence[int], world_size: int, rank: int) -> list[int]:
    """Sizes of the parameters that a rank updates, if whole parameters are dealt out, largest first."""
    owners = assign_to_least_loaded(sizes, [0] * world_size)
    return [size for size, owner in zip(sizes, owners, strict=True) if owner == rank]


def _check(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


# Bytes that a step communicates


def volume(strategy: str, parameters: int, *, as_in_paper: bool = False) -> dict[str, int]:
    """Bytes of float32 tensors that a rank passes to each kind of collective in one step.

    Unsharded training all-reduces every gradient. Our `zero1` does too, and then broadcasts every parameter from its
    owner. The paper's stage 1 reduce-scatters gradients and all-gathers parameters. `fsdp` all-gathers every parameter
    twice, for forward and for backward, and reduce-scatters gradients.

    Args:
        strategy: one of `STRATEGIES`.
        parameters: number of elements of all parameters.
        as_in_paper: for `zero1`, the paper's stage 1.
    """
    _check(strategy)
    whole = parameters * ELEMENT_BYTES
    if strategy == "ddp":
        return {"all_reduce": whole}
    if strategy == "fsdp":
        return {"all_gather": 2 * whole, "reduce_scatter": whole}
    if as_in_paper:
        return {"reduce_scatter": whole, "all_gather": whole}
    return {"all_reduce": whole, "broadcast": whole}


def sent(operation: str, size: float, world_size: int) -> float:
    """Bytes that a rank sends, on average, for a collective on a whole tensor of `size` bytes, by ring algorithms.

    In a reduce-scatter or an all-gather, each rank sends every part but one. An all-reduce is one after the other. A
    broadcast brings the whole tensor to all ranks but one. A barrier has no tensor.

    Raises:
        ValueError: there is no formula for this operation.
    """
    if operation not in _PARTS_SENT:
        raise ValueError(f"no formula for the operation {operation!r}; there are formulas for {', '.join(_PARTS_SENT)}")
    return _PARTS_SENT[operation] * (world_size - 1) / world_size * size


def has_formula(operation: str) -> bool:
    """Whether `sent` knows a kind of operation."""
    return operation in _PARTS_SENT


_PARTS_SENT = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1, "barrier": 0}
"""How often a rank sends every part but one."""
