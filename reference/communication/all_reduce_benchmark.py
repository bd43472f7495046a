"""Measure how long an all-reduce takes, by size and number of ranks, and compute bandwidth and overhead from it.

    python -m reference.communication.all_reduce_benchmark --world-sizes 2 4 --megabytes 1 10 100

An all-reduce is over when the slowest rank is done. So all ranks start together, and the time of a repetition is the
longest time of any rank. To compare world sizes, use the bus bandwidth: with any algorithm, each rank must send and
receive `2 (N - 1) / N` times the bytes of the tensor, so its link carries that many bytes in the measured time.

Source: NVIDIA's nccl-tests, doc/PERFORMANCE.md, on bus bandwidth.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from reference.communication.launch import launch
from reference.communication.overhead import fit
from reference.communication.process_group import current_device

_MEGABYTE = 1e6


@dataclass(frozen=True)
class Measurement:
    """All-reduces of one size.

    Attributes:
        size: bytes of the tensor.
        seconds: of each repetition, on its slowest rank.
    """

    size: int
    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """Seconds of the median repetition."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the seconds."""
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third


def bus_bandwidth(size: int, seconds: float, world_size: int) -> float:
    """Bytes per second that each rank's link carries in each direction."""
    return 2 * (world_size - 1) / world_size * size / seconds


def benchmark(sizes: Sequence[int], warm_up: int, repetitions: int) -> None:
    """Measure all-reduces of float32 tensors of these sizes in bytes, and print a table on rank 0."""
    measurements = [measure(size, warm_up, repetitions) for size in sizes]
    if dist.get_rank() == 0:
        Console().print(report(measurements, dist.get_world_size()))


def measure(size: int, warm_up: int, repetitions: int) -> Measurement:
    """Time all-reduces of `size` bytes of float32, after a warm-up that opens connections and fills caches."""
    tensor = torch.zeros(size // 4, device=current_device())  # zeros, because repeated sums would grow to inf
    for _ in range(warm_up):
        dist.all_reduce(tensor)
    mine = torch.tensor([_time_one(tensor) for _ in range(repetitions)], dtype=torch.float64, device=tensor.device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return Measurement(tensor.nbytes, mine.tolist())


def _time_one(tensor: torch.Tensor) -> float:
    dist.barrier()
    _synchronize(tensor.device)
    began = time.perf_counter()
    dist.all_reduce(tensor)
    _synchronize(tensor.device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    """Wait for the GPU: on CUDA, an all-reduce returns when it is queued, not when it is over."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(measurements: Sequence[Measurement], world_size: int) -> Table:
    """The measurements as a table, with the bandwidth and overhead that fit them best."""
    table = Table(
        title=f"all-reduce over {world_size} ranks ({dist.get_backend()}, {current_device().type})",
        caption=_fitted(measurements),
    )
    for heading in ("MB", "median ms", "quartiles ms", "bus GB/s"):
        table.add_column(heading, justify="right")
    for found in measurements:
        first, third = found.quartiles
        table.add_row(
            f"{found.size / _MEGABYTE:g}",
            f"{found.median * 1e3:.3f}",
            f"{first * 1e3:.3f} to {third * 1e3:.3f}",
            f"{bus_bandwidth(found.size, found.median, world_size) / 1e9:.2f}",
        )
    return table


def _fitted(measurements: Sequence[Measurement]) -> str:
    try:
        w, o = fit([found.size for found in measurements], [found.median for found in measurements])
    except ValueError as error:
        return f"no fit: {error}"
    return f"fit: w = {w / 1e9:.2f} GB/s, o = {o * 1e6:.0f} us per call"


def main() -> None:
    """Read the command line, and measure each world size in turn (in a torchrun job, the job's world size)."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.communication.all_reduce_benchmark", description="Time all-reduces."
    )
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[None], help="ranks to start, one run for each")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.001, 0.01, 0.1, 1, 10, 100], help="sizes")
    parser.add_argument("--warm-up", type=int, default=5, help="all-reduces before measuring")
    parser.add_argument("--repetitions", type=int, default=20, help="all-reduces measured")
    parser.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of the tensors (default: cuda with nccl, else cpu)")
    arguments = parser.parse_args()
    sizes = [int(megabytes * _MEGABYTE) for megabytes in arguments.megabytes]
    for world_size in arguments.world_sizes:
        launch(
            benchmark,
            world_size,
            sizes,
            arguments.warm_up,
            arguments.repetitions,
            backend=arguments.backend,
            device=arguments.device,
        )


if __name__ == "__main__":
    main()
