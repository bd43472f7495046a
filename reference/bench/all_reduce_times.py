"""How long all-reduces take: measured on ranks, with the bandwidth and the overhead that fit.

An all-reduce is over when its slowest rank is done. So the ranks of a group start together, and bandwidth and fit are
computed from the slowest rank of each repetition.

To compare numbers of ranks, use the bus bandwidth: with any algorithm, each rank must send and receive
`2 (N - 1) / N` times the bytes of the tensor, so its link carries that many bytes in the measured time.

Source: NVIDIA's nccl-tests, doc/PERFORMANCE.md, on bus bandwidth.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from reference.bench.method import Spread, spread
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.communication.overhead import fit
from reference.communication.process_group import current_device

_FEWEST = 3  # repetitions, however long they take


@dataclass(frozen=True)
class Measurement:
    """All-reduces of one size over one number of ranks.

    Attributes:
        world_size: number of ranks.
        size: bytes of the tensor.
        seconds: of each repetition, on each rank.
    """

    world_size: int
    size: int
    seconds: Sequence[Sequence[float]]

    @property
    def all_ranks(self) -> Spread:
        """Seconds over ranks and repetitions."""
        return spread([one for repetition in self.seconds for one in repetition])

    @property
    def slowest(self) -> Spread:
        """Seconds of the slowest rank, over repetitions."""
        return spread([max(repetition) for repetition in self.seconds])

    @property
    def bandwidths(self) -> Spread:
        """Bus bandwidth of each repetition in bytes per second, over repetitions."""
        return spread([bus_bandwidth(self.size, max(repetition), self.world_size) for repetition in self.seconds])


def bus_bandwidth(size: int, seconds: float, world_size: int) -> float:
    """Bytes per second that each rank's link carries in each direction."""
    return 2 * (world_size - 1) / world_size * size / seconds


# On the ranks


def measure_on_ranks(world_sizes: Sequence[int], sizes: Sequence[int], warm_up: int, most: int, seconds: float) -> Raw:
    """Time all-reduces of float32 tensors of these sizes in bytes, on groups of these numbers of ranks.

    Args:
        world_sizes: those above the number of ranks are left out.
        sizes: bytes of the tensors.
        warm_up: all-reduces before measuring, if they fit into `seconds`; at least one.
        most: repetitions that are measured, if they fit into `seconds`; at least three.
        seconds: time for the repetitions of one size on one group.

    Returns:
        The seconds of each repetition on each rank, for each size and group.
    """
    world_sizes = at_most(world_sizes, dist.get_world_size())  # a torchrun job may have fewer ranks
    groups = {world_size: dist.new_group(list(range(world_size))) for world_size in world_sizes}
    memory = torch.zeros(max(sizes) // 4, device=current_device())  # zeros: repeated sums would grow to inf
    variants = [(world_size, size) for world_size in world_sizes for size in sizes]
    planned = {}
    for world_size, size in variants:
        first = _slowest(_time_one(memory[: size // 4], groups[world_size]))
        planned[world_size, size] = max(min(_FEWEST, most), min(most, int(seconds / first)))
        for _ in range(min(warm_up, int(seconds / first)) - 1):
            _time_one(memory[: size // 4], groups[world_size])
    mine: dict[tuple[int, int], list[float]] = {variant: [] for variant in variants}
    for number in range(max(planned.values())):
        for variant in variants:
            if number < planned[variant]:
                mine[variant].append(_time_one(memory[: variant[1] // 4], groups[variant[0]]))
    found = _gather(mine)
    for group in groups.values():
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return {"backend": dist.get_backend(), "device": current_device().type, "measurements": found}


def at_most(world_sizes: Sequence[int], ranks: int) -> list[int]:
    """The world sizes for which there are ranks; if there are none, all ranks."""
    return [world_size for world_size in world_sizes if world_size <= ranks] or [ranks]


def _time_one(tensor: torch.Tensor, group: Any) -> float:
    """Seconds of one all-reduce on this rank; 0 if this rank is not in the group."""
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return 0.0
    dist.barrier(group=group)
    _synchronize(tensor.device)
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    _synchronize(tensor.device)
    return time.perf_counter() - began


def _slowest(seconds: float) -> float:
    slowest = torch.tensor([seconds], dtype=torch.float64, device=current_device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _gather(mine: Mapping[tuple[int, int], Sequence[float]]) -> list[dict[str, Any]]:
    every = gather(dict(mine))
    return [
        {
            "world_size": world_size,
            "bytes": size,
            "seconds": [
                list(one) for one in zip(*(every[r][world_size, size] for r in range(world_size)), strict=True)
            ],
        }
        for world_size, size in mine
    ]


def _synchronize(device: torch.device) -> None:
    """Wait for the GPU: on CUDA, an all-reduce returns when it is queued, not when it is over."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# From the raw numbers


def measurements(raw: Raw) -> list[Measurement]:
    """The measurements in raw numbers."""
    return [Measurement(one["world_size"], one["bytes"], one["seconds"]) for one in raw["measurements"]]


def fits(found: Sequence[Measurement]) -> dict[int, tuple[float, float] | str]:
    """For each world size, bandwidth `w` in bytes per second and overhead `o` in seconds; or why there is no fit."""
    return {world_size: _fit(of_size) for world_size, of_size in by_world_size(found).items()}


def _fit(found: Sequence[Measurement]) -> tuple[float, float] | str:
    try:
        return fit([one.size for one in found], [one.slowest.median for one in found])
    except ValueError as error:
        return str(error)


def by_world_size(found: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    """The measurements of each world size."""
    grouped: dict[int, list[Measurement]] = {}
    for one in found:
        grouped.setdefault(one.world_size, []).append(one)
    return grouped
