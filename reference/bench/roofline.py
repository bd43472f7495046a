"""`roofline`: what this machine's cores or GPUs, its memory and its links can give, to read the other benchmarks by.

    python -m reference.bench roofline

Each rank multiplies matrices, adds and copies tensors, sends one and reduces one. In each round, rank 0 does its part
alone, and then all ranks do it together: ranks that share cores or memory get less. The fastest repetition counts,
because a roof is what can be reached, and noise only takes away. Two limits follow:

- An operation that computes `i` operations for each byte of memory runs at most at `min(F, i B)`, where `F` is the rate
  of the arithmetic and `B` the bandwidth of the memory.
- Backward needs 4 operations for each parameter and token, and a gradient has 4 bytes. So it can hide the all-reduce of
  the gradients if a rank has at least `F / w` tokens, where `w` is the bandwidth of the all-reduce.

Source: Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model" (2009).
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from reference.bench import all_reduce_times, pictures
from reference.bench.benchmark import Benchmark
from reference.bench.method import cores, ratios
from reference.bench.ranks import gather, on_ranks, ranks_to_start
from reference.bench.result import Column, Raw, Result
from reference.bench.training_options import add_rank_options, at_least
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MULTIPLY, _ADD, _COPY, _UPLOAD = "multiply matrices", "add tensors", "copy a tensor", "copy from the host"
_FLOAT = 4  # bytes
_LATENCY_BYTES = 4_000
_FEWEST = 3
_ON_CPU, _ON_GPU = (1024, 2**25), (8192, 2**28)  # width of matrices, and elements of tensors


# On the ranks


def measure_on_ranks(width: int, elements: int, repetitions: int, seconds: float) -> Raw:
    """Measure each operation alone on rank 0 and together on all ranks, and then the links.

    Args:
        width: of the square matrices.
        elements: of the tensors, float32.
        repetitions: of each operation, at most.
        seconds: time for the repetitions of each operation.
    """
    operations = _operations(width, elements)
    found = {}
    for name, (amount, operation) in operations.items():
        count = _plan(operation, repetitions, seconds)
        found[name] = {**amount, **_alone_and_together(operation, count)}
    del operations
    size = elements * _FLOAT
    return {
        "backend": dist.get_backend(),
        "device": current_device().type,
        "world_size": dist.get_world_size(),
        "threads": torch.get_num_threads(),
        "width": width,
        "operations": found,
        "send": {"bytes": size, "seconds": _send(elements, repetitions)},
        "all_reduces": all_reduce_times.measure_on_ranks(
            [dist.get_world_size()], [_LATENCY_BYTES, size], 3, repetitions, seconds
        )["measurements"],
    }


def _operations(width: int, elements: int) -> dict[str, tuple[dict[str, int], Callable[[], object]]]:
    """Each operation, with the arithmetic operations it computes and the bytes of memory it moves."""
    device = current_device()
    left, right = (torch.rand(width, width, device=device) for _ in range(2))
    one, two, three = (torch.zeros(elements, device=device) for _ in range(3))
    size = elements * _FLOAT
    operations: dict[str, tuple[dict[str, int], Callable[[], object]]] = {
        _MULTIPLY: ({"flops": 2 * width**3, "bytes": 3 * width**2 * _FLOAT}, lambda: left @ right),
        _ADD: ({"flops": elements, "bytes": 3 * size}, lambda: torch.add(one, two, out=three)),
        _COPY: ({"flops": 0, "bytes": 2 * size}, lambda: one.copy_(two)),
    }
    if device.type == "cuda":
        host = torch.zeros(elements).pin_memory()
        half = [matrix.bfloat16() for matrix in (left, right)]
        work = {"flops": 2 * width**3, "bytes": 6 * width**2}
        operations[f"{_MULTIPLY}, bfloat16"] = (work, lambda: half[0] @ half[1])
        operations[_UPLOAD] = ({"flops": 0, "bytes": size}, lambda: one.copy_(host))
    return operations


def _alone_and_together(operation: Callable[[], object], rounds: int) -> dict[str, Any]:
    """Seconds on rank 0 while the other ranks wait, and on each rank while all work, round by round."""
    alone, together = [], []
    for _ in range(rounds):
        dist.barrier()
        alone.append(_time(operation) if dist.get_rank() == 0 else 0.0)
        dist.barrier()
        together.append(_time(operation))
    return {"alone": gather(alone)[0], "together": gather(together)}


def _plan(operation: Callable[[], object], most: int, seconds: float) -> int:
    """How many repetitions fit into the time, the same on every rank; runs the operation once to warm up."""
    operation()
    slowest = max(gather(_time(operation)))
    return max(min(_FEWEST, most), min(most, int(seconds / slowest)))


def _time(operation: Callable[[], object]) -> float:
    _synchronize()
    began = time.perf_counter()
    operation()
    _synchronize()
    return time.perf_counter() - began


def _synchronize() -> None:
    if current_device().type == "cuda":
        torch.cuda.synchronize()


def _send(elements: int, repetitions: int) -> list[float]:
    """Seconds of sends from rank 0 to rank 1, on the slower of the two.

    There are none with one rank, nor with gloo on GPUs: it cannot send their tensors.
    """
    if dist.get_world_size() == 1 or (dist.get_backend() == "gloo" and current_device().type == "cuda"):
        return []
    tensor = torch.zeros(elements, device=current_device())
    exchange = {0: lambda: dist.send(tensor, 1), 1: lambda: dist.recv(tensor, 0)}.get(dist.get_rank(), lambda: None)
    mine = []
    for _ in range(min(_FEWEST, repetitions) + 1):
        dist.barrier()
        mine.append(_time(exchange))
    mine = mine[1:]  # the first one connects
    return [max(ranks) for ranks in zip(*gather(mine), strict=True)]


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    smallest = at_least(_LATENCY_BYTES // _FLOAT + 1)  # larger than the small tensor that is reduced
    command.add_argument("--width", type=at_least(1), help="of square matrices (default: 1024, on a GPU 8192)")
    command.add_argument("--elements", type=smallest, help="of float32 tensors (default: 2^25, on a GPU 2^28)")
    command.add_argument("--repetitions", type=at_least(1), default=20, help="of each operation, at most")
    command.add_argument("--seconds", type=float, default=2.0, help="time for each operation")
    add_rank_options(command)


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    wants_gpu = options.device == "cuda" or (options.device is None and options.backend != "gloo")
    width, elements = _ON_GPU if wants_gpu and torch.cuda.is_available() else _ON_CPU
    raw: Raw = on_ranks(
        measure_on_ranks,
        ranks_to_start(options.world_size, options.backend, options.device),
        options.width or width,
        options.elements or elements,
        options.repetitions,
        options.seconds,
        backend=options.backend,
        device=options.device,
    )
    return {**raw, "cores": cores(), "gpus": torch.cuda.device_count()}


# From the raw numbers


def alone(raw: Raw, name: str, amount: str) -> float:
    """How much (`flops` or `bytes`) of an operation rank 0 does in a second while the others wait."""
    operation = raw["operations"][name]
    return float(operation[amount] / min(operation["alone"]))


def kept(raw: Raw, name: str) -> float:
    """The share of the rate alone that a rank keeps while all ranks work: the median over rounds."""
    operation = raw["operations"][name]
    return ratios(operation["alone"], [max(ranks) for ranks in zip(*operation["together"], strict=True)]).median


def together(raw: Raw, name: str, amount: str) -> float:
    """How much of an operation a rank does in a second while all ranks do it: the median over ranks."""
    operation = raw["operations"][name]
    return float(median(operation[amount] / min(seconds) for seconds in operation["together"]))


def links(raw: Raw) -> tuple[all_reduce_times.Measurement, all_reduce_times.Measurement]:
    """The all-reduces of a small and of a large tensor."""
    small, large = all_reduce_times.measurements({"measurements": raw["all_reduces"]})
    return small, large


def gradient_bandwidth(raw: Raw) -> float:
    """Bytes of gradients per second in the fastest all-reduce of the large tensor."""
    _, large = links(raw)
    return large.size / min(map(max, large.seconds))


def tokens_to_hide(raw: Raw) -> float:
    """The tokens per rank from which backward takes longer than the all-reduce of the gradients."""
    return together(raw, _MULTIPLY, "flops") / gradient_bandwidth(raw)


def evaluate(raw: Raw) -> Result:
    """One line for each ability of the machine."""
    return Result(
        name=BENCHMARK.name,
        title=f"What {raw['world_size']} ranks can get ({raw['backend']}, {raw['device']}, {raw['cores']} cores, "
        f"{raw['gpus']} GPUs)",
        columns=[Column("ability"), Column("one rank alone"), Column("each of all ranks"), Column("unit")],
        rows=[*_compute_rows(raw), *_link_rows(raw)],
        sentences=_sentences(raw),
        raw=raw,
    )


def _compute_rows(raw: Raw) -> list[list[Any]]:
    rows = []
    for name, operation in raw["operations"].items():
        amount, unit = ("flops", "GFLOP/s") if name.startswith(_MULTIPLY) else ("bytes", "GB/s")
        if operation[amount]:
            rows.append([name, alone(raw, name, amount) / 1e9, together(raw, name, amount) / 1e9, unit])
    return rows


def _link_rows(raw: Raw) -> list[list[Any]]:
    small, large = links(raw)
    bus = all_reduce_times.bus_bandwidth(large.size, min(map(max, large.seconds)), raw["world_size"])
    size, sends = raw["send"]["bytes"], raw["send"]["seconds"]
    return [
        *([["send to another rank", size / min(sends) / 1e9, None, "GB/s"]] if sends else []),
        ["all-reduce, bus bandwidth", None, bus / 1e9, "GB/s"],
        ["all-reduce of 4 KB", None, min(map(max, small.seconds)) * 1e6, "us"],
    ]


def _sentences(raw: Raw) -> list[str]:
    flops, memory = alone(raw, _MULTIPLY, "flops"), alone(raw, _COPY, "bytes")
    on_cores = "a core" if raw["threads"] == 1 else f"{raw['threads']} cores"
    what = "a GPU" if raw["device"] == "cuda" else on_cores
    sentences = [
        f"A rank on {what} computes {flops / 1e9:.0f} GFLOP/s and moves {memory / 1e9:.1f} GB/s of memory.",
        f"An operation with less than {flops / memory:.0f} FLOP per byte waits for memory.",
    ]
    if raw["world_size"] > 1:
        arithmetic, copies, tokens = f"{kept(raw, _MULTIPLY):.0%}", f"{kept(raw, _COPY):.0%}", tokens_to_hide(raw)
        sentences += [
            f"If all {raw['world_size']} ranks work, each keeps {arithmetic} of the arithmetic and {copies} of copies.",
            f"From {tokens:.0f} tokens per rank on, backward takes longer than the all-reduce of its gradients.",
        ]
    if raw["device"] == "cpu":
        sentences.append("A GPU for each rank would raise all of these roofs; to measure one: --device cuda.")
    return sentences


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """The roofs of arithmetic, memory and links over the operations per byte, with the measured operations."""
    where = f"one of {raw['world_size']} ranks, {raw['device']}, {raw['backend']}"
    picture, axes = pictures.figure(
        f"Roofline of {where}", x="arithmetic operations per byte (FLOP/byte)", y="rate (GFLOP/s)"
    )
    peak = together(raw, _MULTIPLY, "flops")
    roofs = {"memory": together(raw, _COPY, "bytes")}
    if raw["world_size"] > 1:
        roofs["all-reduce"] = gradient_bandwidth(raw)
    high = 4 * peak / min(roofs.values())
    intensities = pictures.log_range(0.05, high)
    for (name, bandwidth), colour in zip(roofs.items(), pictures.COLOURS, strict=False):
        rates = [min(peak, intensity * bandwidth) / 1e9 for intensity in intensities]
        axes.plot(intensities, rates, color=colour, label=f"{name}: {bandwidth / 1e9:.2f} GB/s")
    for name, marker in ((_ADD, "s"), (_MULTIPLY, "o")):
        operation = raw["operations"][name]
        intensity = operation["flops"] / operation["bytes"]
        rate = together(raw, name, "flops") / 1e9
        axes.plot([intensity], [rate], marker, color="black", label=f"measured: {name}, {rate:.3g} GFLOP/s")
    pictures.plain_log(axes.xaxis)
    pictures.plain_log(axes.yaxis)
    axes.legend()
    return {BENCHMARK.name: picture}


BENCHMARK = Benchmark(
    name="roofline",
    help="What this machine's cores or GPUs, memory and links can give.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
