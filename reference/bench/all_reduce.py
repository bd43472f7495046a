"""`all-reduce`: how long an all-reduce takes, by size and number of ranks, and the bandwidth and overhead that fit.

    python -m reference.bench all-reduce --world-sizes 2 4 6 --megabytes 1 10 100 1000

All ranks are started once. Each world size is a group of the first ranks, so that sizes and world sizes can be measured
in turn, round by round. An all-reduce is over when its slowest rank is done. So the ranks of the group start together,
and bandwidth and fit are computed from the slowest rank of each repetition. The quartiles are over all ranks and
repetitions.

To compare world sizes, use the bus bandwidth: with any algorithm, each rank must send and receive `2 (N - 1) / N` times
the bytes of the tensor, so its link carries that many bytes in the measured time.

Source: NVIDIA's nccl-tests, doc/PERFORMANCE.md, on bus bandwidth.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.method import Spread, cores, spread
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.communication.launch import in_job
from reference.communication.overhead import fit
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABYTE = 1e6
_WORLD_SIZES = (2, 4, 6)
_MEGABYTES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_FEWEST = 3  # repetitions, however long they take
_COPIES = 3  # of the tensor on each rank: its own, and what the backend holds while it runs


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
    world_sizes = _at_most(world_sizes, dist.get_world_size())  # a torchrun job may have fewer ranks
    groups = {world_size: dist.new_group(list(range(world_size))) for world_size in world_sizes}
    memory = torch.zeros(max(sizes) // 4, device=current_device())  # zeros: repeated sums would grow to inf
    variants = [(world_size, size) for world_size in world_sizes for size in sizes]
    planned = {}
    for world_size, size in variants:
        first = _slowest(_time_one(memory[: size // 4], groups[world_size]))
        planned[world_size, size] = max(min(_FEWEST, most), min(most, int(seconds / first)))
        for _ in range(min(warm_up, planned[world_size, size]) - 1):
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


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument(
        "--world-sizes", type=int, nargs="+", help="numbers of ranks (default: 2 4 6, with nccl as many as GPUs)"
    )
    command.add_argument("--megabytes", type=float, nargs="+", default=_MEGABYTES, help="sizes, in 10^6 bytes")
    command.add_argument("--warm-up", type=int, default=5, help="all-reduces before measuring")
    command.add_argument("--repetitions", type=int, default=20, help="all-reduces measured, at most")
    command.add_argument("--seconds", type=float, default=3.0, help="time for each size on each number of ranks")
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument("--device", choices=["cpu", "cuda"], help="of the tensors (default: cuda with nccl, else cpu)")


def measure(options: Namespace) -> Raw:
    """Start as many ranks as the largest world size needs, and measure on them."""
    world_sizes = options.world_sizes or default_world_sizes(options.backend, options.device)
    ranks = max(world_sizes)
    sizes = [int(megabytes * MEGABYTE) for megabytes in sorted(options.megabytes)]
    fitting = [size for size in sizes if size * _COPIES * ranks <= psutil.virtual_memory().available]
    raw = on_ranks(
        measure_on_ranks,
        None if in_job() else ranks,
        sorted(world_sizes),
        fitting,
        options.warm_up,
        options.repetitions,
        options.seconds,
        backend=options.backend,
        device=options.device,
    )
    left_out = [size for size in sizes if size not in fitting]
    return {**raw, "cores": cores(), "left_out_bytes": left_out, "warm_up": options.warm_up}


def default_world_sizes(backend: str | None, device: str | None) -> list[int]:
    """2, 4 and 6 ranks; with nccl, those for which there are GPUs, or one rank for each GPU if there are fewer."""
    is_nccl = backend == "nccl" or (backend is None and device != "cpu" and torch.cuda.is_available())
    return _at_most(_WORLD_SIZES, torch.cuda.device_count() or 1) if is_nccl else list(_WORLD_SIZES)


def _at_most(world_sizes: Sequence[int], ranks: int) -> list[int]:
    return [world_size for world_size in world_sizes if world_size <= ranks] or [ranks]


def evaluate(raw: Raw) -> Result:
    """The table: time, quartiles and bus bandwidth of each size; the sentences: fit and best bandwidth."""
    found = measurements(raw)
    return Result(
        name=BENCHMARK.name,
        title=f"All-reduce ({raw['backend']}, {raw['device']})",
        columns=[
            Column("ranks"),
            Column("size", "MB"),
            Column("median", "ms"),
            Column("first quartile", "ms"),
            Column("third quartile", "ms"),
            Column("slowest rank", "ms"),
            Column("bus bandwidth", "GB/s"),
            Column("repetitions"),
        ],
        rows=[_row(one) for one in found],
        sentences=[*_fit_sentences(found), *_bandwidth_sentences(raw, found)],
        raw=raw,
    )


def measurements(raw: Raw) -> list[Measurement]:
    """The measurements in raw numbers."""
    return [Measurement(one["world_size"], one["bytes"], one["seconds"]) for one in raw["measurements"]]


def _row(found: Measurement) -> list[int | float]:
    every = found.all_ranks.scaled(1e3)
    return [
        found.world_size,
        found.size / MEGABYTE,
        every.median,
        every.first,
        every.third,
        found.slowest.median * 1e3,
        found.bandwidths.median / 1e9,
        len(found.seconds),
    ]


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


def _fit_sentences(found: Sequence[Measurement]) -> list[str]:
    fitted = [
        f"{world_size} ranks: no fit, {line}"
        if isinstance(line, str)
        else f"{world_size} ranks: w = {line[0] / 1e9:.2f} GB/s, o = {line[1] * 1e6:.0f} us per call"
        for world_size, line in fits(found).items()
    ]
    return [f"The fit `seconds = bytes / w + o` gives for {'; '.join(fitted)}."]


def _bandwidth_sentences(raw: Raw, found: Sequence[Measurement]) -> list[str]:
    best = max(found, key=lambda one: one.bandwidths.median)
    highest = f"{best.bandwidths.median / 1e9:.2f} GB/s, with {best.world_size} ranks and {best.size / MEGABYTE:g} MB"
    sentences = [f"The highest bus bandwidth is {highest}."]
    most = max(one.world_size for one in found)
    if raw["device"] == "cpu":
        sharing = f", {most} ranks on {raw['cores']} cores" if most > raw["cores"] else ""
        sentences.append(
            f"Here the cores copy and add the numbers{sharing}; with a GPU for each rank, nccl does both on the GPUs."
        )
    if raw["left_out_bytes"]:
        sizes = ", ".join(f"{size / MEGABYTE:g}" for size in raw["left_out_bytes"])
        sentences.append(f"Tensors of {sizes} MB are left out: they do not fit into the free memory on {most} ranks.")
    return sentences


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """Time by size with the fitted lines, and bus bandwidth by size; one series for each number of ranks."""
    found = measurements(raw)
    where = f"{raw['backend']}, {raw['device']}"
    picture, (times, bandwidths) = pictures.panels(
        [
            (f"All-reduce ({where}): slowest rank, median and quartiles", "tensor (MB)", "time (ms)"),
            ("Bus bandwidth", "tensor (MB)", "GB/s"),
        ],
        inches=(8.0, 8.0),
    )
    lines = fits(found)
    colours = pictures.colours(map(str, lines))
    for world_size, of_size in by_world_size(found).items():
        colour, megabytes = colours[str(world_size)], [one.size / MEGABYTE for one in of_size]
        slowest = [one.slowest.scaled(1e3) for one in of_size]
        label = f"{world_size} ranks"
        line = lines[world_size]
        if not isinstance(line, str):
            label += f": w = {line[0] / 1e9:.2f} GB/s, o = {line[1] * 1e6:.0f} us"
            between = pictures.log_range(megabytes[0], megabytes[-1])
            modelled = [(size * MEGABYTE / line[0] + line[1]) * 1e3 for size in between]
            times.plot(between, modelled, "--", color=colour, linewidth=1)
        below, above = zip(*((one.median - one.first, one.third - one.median) for one in slowest), strict=True)
        medians = [one.median for one in slowest]
        times.errorbar(megabytes, medians, [below, above], fmt="o", capsize=3, color=colour, label=label)
        carried = [one.bandwidths.scaled(1e-9) for one in of_size]
        pictures.line(
            bandwidths,
            megabytes,
            [(one.first, one.median, one.third) for one in carried],
            f"{world_size} ranks",
            colour,
        )
    for axis in (times.xaxis, times.yaxis, bandwidths.xaxis):
        pictures.plain_log(axis)
    times.legend(title="dashed: fit bytes / w + o")
    bandwidths.set_ylim(bottom=0)
    bandwidths.legend()
    return {BENCHMARK.name: picture}


BENCHMARK = Benchmark(
    name="all-reduce",
    help="Time all-reduces by size and number of ranks; fit bandwidth and overhead.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
