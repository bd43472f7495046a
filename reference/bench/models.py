"""`models`: the assignment's transformers on paper: parameters, operations, memory on each rank, largest batch.

    python -m reference.bench models --world-size 8 --memory-gb 80

Nothing large is allocated for the table: it is arithmetic (`transformer_costs`, `accounting`). Sizes that fit this
machine, with a step of at most `--seconds`, also train four steps on one rank, and are compared with the arithmetic.
"""

import gc
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from reference.bench import pictures
from reference.bench.accounting import STRATEGIES, paper
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import Workload, batch
from reference.bench.memory_moments import kept, watch_training
from reference.bench.ranks import on_ranks
from reference.bench.result import Column, Raw, Result
from reference.bench.strategies import strategies
from reference.bench.transformer_costs import Batch, activation_bytes, largest_batch, parameters, step_operations
from reference.communication.launch import in_job
from reference.communication.process_group import current_device
from reference.models.transformer import SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIGABYTE, MEGABYTE = 1e9, 1e6
_GPU_GB = 80.0  # of an A100 or H100
_ROOM = 0.5  # share of the free memory that a measured size may need
_STEPS = 2
_PRODUCTS = 20
_PRODUCT = {"cpu": 1024, "cuda": 8192}  # rows and columns of the matrices whose product gives the machine's speed


# On one rank


def measure_on_rank(names: Sequence[str], words: int, seconds: float) -> Raw:
    """Train each size that fits, on one sequence: moments of memory, and the seconds of a step."""
    device, speed = current_device(), product_speed(current_device())
    found: dict[str, Any] = {}
    for name in names:
        workload = Workload(name, 1, words, 25.0)
        is_short = step_operations(SIZES[name], Batch(1, words)) / speed <= seconds
        found[name] = _measure(workload) if is_short and needed(name, words) <= _ROOM * _free(device) else None
        speed = max(speed, product_speed(device))  # the machine may have been busy the first time
    return {"device": device.type, "operations_per_second": speed, "measured": found}


def product_speed(device: torch.device) -> float:
    """Operations per second of the fastest of some products of two float32 matrices: a roof that no step exceeds."""
    width = _PRODUCT[device.type]
    one = torch.ones(width, width, device=device)
    return 2 * width**3 / min(_seconds_of(lambda: one @ one, one) for _ in range(_PRODUCTS))


def needed(name: str, words: int) -> float:
    """Bytes of a training of this size on one rank, with one sequence."""
    size = SIZES[name]
    return paper("ddp", parameters(size), 1).total + activation_bytes(size, Batch(1, words))


def _free(device: torch.device) -> float:
    """Bytes that a training can have; on a GPU, also those that torch kept of the training before."""
    if device.type == "cpu":
        return psutil.virtual_memory().available
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _measure(workload: Workload) -> dict[str, Any]:
    tokens = batch(workload)
    training, moments = watch_training(strategies(workload)["ddp"], tokens)
    return {"moments": moments, "seconds": [_seconds_of(lambda: training.step(tokens), tokens) for _ in range(_STEPS)]}


def _seconds_of(function: Any, tensor: Tensor) -> float:
    began = time.perf_counter()
    function()
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument(
        "--sizes", nargs="+", default=list(SIZES), choices=list(SIZES), help="sizes of the transformer"
    )
    command.add_argument("--words", type=int, default=256, help="tokens in each sequence")
    command.add_argument("--world-size", type=int, default=8, help="ranks over which the table shards; none is started")
    command.add_argument(
        "--memory-gb", type=float, help="memory of each rank, in 10^9 bytes (default: this GPU's, or 80)"
    )
    command.add_argument("--seconds", type=float, default=5.0, help="train sizes whose step takes at most so long")


def measure(options: Namespace) -> Raw:
    """Start one rank, and train the sizes that fit.

    Raises:
        ValueError: this is a rank of a job. Each rank would decide by its own speed and memory what it trains.
    """
    if in_job():
        raise ValueError("models trains on one rank, which it starts: run it without torchrun or srun")
    gpu = torch.cuda.get_device_properties(0).total_memory / GIGABYTE if torch.cuda.is_available() else _GPU_GB
    arguments = (options.sizes, options.words, options.seconds)
    found: Raw = on_ranks(measure_on_rank, 1, *arguments)
    asked = {"sizes": options.sizes, "words": options.words, "world_size": options.world_size}
    return {**asked, "memory_gb": options.memory_gb or gpu, **found}


def evaluate(raw: Raw) -> Result:
    """The table of all sizes; the sentences: which ones fit, and how far the arithmetic is from what was measured."""
    return Result(
        name=BENCHMARK.name,
        title=f"Transformers with sequences of {raw['words']} tokens, float32, AdamW: parameters, operations of a step "
        f"and saved activations for one sequence; states and largest batch on each of {raw['world_size']} ranks of "
        f"{raw['memory_gb']:.0f} GB; measured on one rank ({raw['device']})",
        columns=[
            Column("model"),
            Column("size", "10^6"),
            Column("work", "10^9"),
            Column("saved", "MB"),
            *(Column(strategy, "GB") for strategy in STRATEGIES),
            *(Column(f"batch, {strategy}") for strategy in STRATEGIES),
            Column("states off", "%"),
            Column("saved off", "%"),
            Column("step", "s"),
        ],
        rows=[_row(raw, name) for name in raw["sizes"]],
        sentences=[_fitting(raw), _measured(raw), _DEVICES[raw["device"]]],
        raw=raw,
    )


def _row(raw: Raw, name: str) -> list[Any]:
    size, one = SIZES[name], Batch(1, raw["words"])
    elements = parameters(size)
    states = [round(paper(strategy, elements, raw["world_size"]).total / GIGABYTE, 3) for strategy in STRATEGIES]
    operations, activations = step_operations(size, one), activation_bytes(size, one)
    costs = [elements / 1e6, round(operations / 1e9, 1), activations / MEGABYTE]
    return [name, *costs, *states, *batches(raw, name), *_compared(raw, name)]


def batches(raw: Raw, name: str) -> list[int]:
    """The most sequences that fit on a rank, for each strategy."""
    memory = raw["memory_gb"] * GIGABYTE
    return [largest_batch(SIZES[name], raw["words"], each, raw["world_size"], memory) for each in STRATEGIES]


def _compared(raw: Raw, name: str) -> list[float | None]:
    """How far measured states and activations are from the arithmetic in percent; seconds of a step."""
    measured = raw["measured"][name]
    if measured is None:
        return [None] * 3
    size, one, found = SIZES[name], Batch(1, raw["words"]), kept(measured["moments"])
    states = paper("ddp", parameters(size), 1).total
    return [
        round(100 * (found.states.total / states - 1), 2) + 0.0,  # never -0
        round(100 * (found.activations / activation_bytes(size, one) - 1), 2) + 0.0,
        median(measured["seconds"]),
    ]


def _fitting(raw: Raw) -> str:
    parts = []
    for index, strategy in enumerate(STRATEGIES):
        fits = [name for name in raw["sizes"] if batches(raw, name)[index] > 0]
        largest = max(fits, key=lambda name: parameters(SIZES[name]), default=None)
        parts.append(f"none with {strategy}" if largest is None else f"{largest} with {strategy}")
    return (
        f"The largest size of which a rank with {raw['memory_gb']:.0f} GB can train a sequence is {', '.join(parts)}."
    )


def _measured(raw: Raw) -> str:
    rows = {name: _compared(raw, name) for name in raw["sizes"] if raw["measured"][name] is not None}
    if not rows:
        return "No size was measured: give more --seconds, or free memory."
    states, activations = (max(abs(row[index] or 0.0) for row in rows.values()) for index in (0, 1))
    speeds = [step_operations(SIZES[name], Batch(1, raw["words"])) / (row[2] or 1) for name, row in rows.items()]
    share = max(speeds) / raw["operations_per_second"]
    return (
        f"Measured {', '.join(rows)}: states are at most {states:.2f}% and activations {activations:.2f}% from the "
        f"arithmetic, and steps reach {share:.0%} of the speed of a product of two matrices "
        f"({raw['operations_per_second'] / 1e9:.0f} x 10^9 operations per second)."
    )


_DEVICES = {
    "cpu": "A GPU computes the same operations and keeps the same states; its fused norms save fewer activations.",
    "cuda": "Fused norms save fewer activations on a GPU than the arithmetic says, which counts what a CPU saves.",
}


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """States on each rank for each size and strategy, beside the memory of a rank; below, the largest batches."""
    picture, [states, largest] = pictures.panels(
        [
            (f"Parameters, gradients and AdamW's state on each of {raw['world_size']} ranks", "", "memory (GB)"),
            (f"Largest batch of sequences of {raw['words']} tokens", "", "sequences per rank"),
        ],
        inches=(8.0, 7.5),
    )
    names = sorted(raw["sizes"], key=lambda name: parameters(SIZES[name]))
    for index, (strategy, colour) in enumerate(pictures.colours(STRATEGIES).items()):
        places = [place + 0.27 * (index - 1) for place in range(len(names))]
        held = [paper(strategy, parameters(SIZES[name]), raw["world_size"]).total / GIGABYTE for name in names]
        states.bar(places, held, 0.25, color=colour, label=strategy)
        largest.bar(places, [batches(raw, name)[index] for name in names], 0.25, color=colour, label=strategy)
    states.axhline(raw["memory_gb"], color="black", linewidth=1, linestyle="--", label="memory of a rank")
    for axes in (states, largest):
        axes.set(yscale="log")
        axes.set_xticks(range(len(names)), names)
        axes.grid(visible=False, axis="x")
        axes.set(ylim=(None, 8 * axes.get_ylim()[1]))  # room for the legend
        axes.legend(ncols=4)
    return {BENCHMARK.name: picture}


BENCHMARK = Benchmark(
    name="models",
    help="The assignment's transformers: parameters, operations, memory for each strategy, largest batch.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
