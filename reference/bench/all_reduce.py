"""`all-reduce`: how long an all-reduce takes, by size and number of ranks, and the bandwidth and overhead that fit.

    python -m reference.bench all-reduce --world-sizes 2 4 6 --megabytes 1 10 100 1000

All ranks are started once. Each world size is a group of the first ranks, so that sizes and world sizes can be measured
in turn, round by round. The quartiles are over all ranks and repetitions. Bandwidth and fit are computed from the
slowest rank of each repetition (`all_reduce_times`).
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import psutil

from reference.bench import pictures
from reference.bench.all_reduce_times import Measurement, at_most, by_world_size, fits, measure_on_ranks, measurements
from reference.bench.benchmark import Benchmark
from reference.bench.method import cores
from reference.bench.ranks import gpus, on_ranks, uses_nccl
from reference.bench.result import Column, Raw, Result
from reference.bench.training_options import at_least, positive
from reference.communication.launch import in_job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABYTE = 1e6
_WORLD_SIZES = (2, 4, 6)
_MEGABYTES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_COPIES = 3  # of the tensor on each rank: its own, and what the backend holds while it runs


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument(
        "--world-sizes", type=at_least(1), nargs="+", help="numbers of ranks (default: 2 4 6, nccl: as many as GPUs)"
    )
    command.add_argument("--megabytes", type=positive, nargs="+", default=_MEGABYTES, help="sizes, in 10^6 bytes")
    command.add_argument("--warm-up", type=at_least(0), default=5, help="all-reduces before measuring")
    command.add_argument("--repetitions", type=at_least(1), default=20, help="all-reduces measured, at most")
    command.add_argument("--seconds", type=float, default=3.0, help="time for each size on each number of ranks")
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument("--device", choices=["cpu", "cuda"], help="of the tensors (default: cuda with nccl, else cpu)")


def measure(options: Namespace) -> Raw:
    """Start as many ranks as the largest world size needs, and measure on them.

    Raises:
        ValueError: no size fits into the free memory.
    """
    world_sizes = options.world_sizes or default_world_sizes(options.backend, options.device)
    ranks = max(world_sizes)
    sizes = [int(megabytes * MEGABYTE) for megabytes in sorted(options.megabytes)]
    fitting = [size for size in sizes if size * _COPIES * ranks <= psutil.virtual_memory().available]
    if not fitting:
        raise ValueError(f"no tensor of --megabytes fits into the free memory on {ranks} ranks: give smaller ones")
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
    return at_most(_WORLD_SIZES, gpus()) if uses_nccl(backend, device) else list(_WORLD_SIZES)


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


def _fit_sentences(found: Sequence[Measurement]) -> list[str]:
    fitted = [
        f"{world_size} ranks: no fit, {line}"
        if isinstance(line, str)
        else f"{world_size} ranks: w = {line[0] / 1e9:.2f} GB/s, o = {line[1] * 1e6:.0f} us per call"
        for world_size, line in fits(found).items()
        if world_size > 1
    ]
    return [f"The fit `seconds = bytes / w + o` gives for {'; '.join(fitted)}."] if fitted else []


def _bandwidth_sentences(raw: Raw, found: Sequence[Measurement]) -> list[str]:
    best = max(found, key=lambda one: one.bandwidths.median)
    highest = f"{best.bandwidths.median / 1e9:.2f} GB/s, with {best.world_size} ranks and {best.size / MEGABYTE:g} MB"
    most = max(one.world_size for one in found)
    sentences = [f"The highest bus bandwidth is {highest}." if most > 1 else "A single rank sends nothing."]
    sentences += _about_device(raw, most)
    if raw["left_out_bytes"]:
        sizes = ", ".join(f"{size / MEGABYTE:g}" for size in raw["left_out_bytes"])
        sentences.append(f"Tensors of {sizes} MB are left out: they do not fit into the free memory on {most} ranks.")
    return sentences


def _about_device(raw: Raw, most: int) -> list[str]:
    """What computes and carries the sums here, and what a GPU would change."""
    if raw["device"] == "cpu":
        sharing = f", {most} ranks on {raw['cores']} cores" if most > raw["cores"] else ""
        return [
            f"Here the cores copy and add the numbers{sharing}; with a GPU for each rank, nccl does both on the GPUs."
        ]
    if raw["backend"] == "gloo":
        return ["gloo copies the numbers from the GPU to the host, adds them on the cores and copies them back."]
    return []


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
