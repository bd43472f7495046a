"""How much longer an all-reduce takes while its ranks compute than while they only wait for it.

The overhead model assumes no difference. On CPUs, the threads that communicate need cores on which the ranks compute.
On GPUs, the kernels of collectives and of the model share units and memory.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from reference.bench.method import Spread, spread
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.communication.process_group import current_device

_REPETITIONS = 7
_WIDTH = 128  # of square matrices whose product takes well under a millisecond
_FLOAT = 4  # bytes


def measure_on_ranks(sizes: Sequence[int]) -> list[Raw]:
    """Time all-reduces of float32 tensors of these sizes in bytes, alone and beside products of matrices, in turn."""
    matrix = torch.full((_WIDTH, _WIDTH), 1 / _WIDTH, device=current_device())
    found = []
    for size in sizes:
        tensor = torch.zeros(max(1, size // _FLOAT), device=current_device())
        _time_alone(tensor)  # warms up
        alone, computing = [], []
        for _ in range(_REPETITIONS):
            alone.append(_time_alone(tensor))
            computing.append(_time_computing(tensor, matrix))
        found.append({"bytes": size, "alone": _slowest(alone), "computing": _slowest(computing)})
    return found


def _time_alone(tensor: torch.Tensor) -> float:
    """Seconds of an all-reduce for which this rank sleeps; on a GPU, until the kernels have run."""
    dist.barrier()
    _synchronize(tensor)
    began = time.perf_counter()
    dist.all_reduce(tensor)
    _synchronize(tensor)
    return time.perf_counter() - began


def _time_computing(tensor: torch.Tensor, matrix: torch.Tensor) -> float:
    """Seconds until an all-reduce is complete while this rank multiplies matrices again and again."""
    dist.barrier()
    _synchronize(tensor)
    began = time.perf_counter()
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        _ = matrix @ matrix
    seconds = time.perf_counter() - began
    work.wait()
    return seconds


def _synchronize(tensor: torch.Tensor) -> None:
    """Wait for the GPU: kernels from before, such as products of matrices, are no part of an all-reduce."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _slowest(mine: Sequence[float]) -> list[float]:
    """The seconds of the slowest rank, repetition by repetition."""
    return [max(ranks) for ranks in zip(*gather(list(mine)), strict=True)]


@dataclass(frozen=True)
class Contention:
    """All-reduces of one size.

    Attributes:
        size: bytes of the tensor.
        alone: seconds while the ranks only wait.
        computing: seconds while the ranks compute.
    """

    size: int
    alone: Spread
    computing: Spread

    @classmethod
    def of(cls, found: Raw) -> "Contention":
        """From raw numbers."""
        return cls(found["bytes"], spread(found["alone"]), spread(found["computing"]))
