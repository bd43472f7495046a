"""`step`: what sharding costs: time of a step and bytes that are communicated, measured and by formula.

    python -m reference.bench step --model 512x4 --world-size 2

Times are from interleaved rounds on the same ranks; a ratio to `ddp` is taken within a round. Then each training takes
one more step in a process group that records every operation: that is the measured volume.

To compare collectives of different kinds, their bytes are converted to what a rank sends by ring algorithms, on average
(`accounting.sent`). With Psi bytes of parameters and W ranks, in units of Psi (W - 1) / W:

    ddp                  2   an all-reduce of the gradients
    zero1                3   the same, and each owner broadcasts its parameters
    zero1 in the paper   2   a reduce-scatter of the gradients, and an all-gather of the parameters
    fsdp                 3   parameters are gathered in forward and in backward, gradients are reduce-scattered

Ours is used like any optimizer: after a wrapper has averaged the gradients on every rank. The paper's exchanges them
itself, so it can leave out what other ranks own.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section 7.
"""

import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from reference.bench import pictures
from reference.bench.accounting import sent, volume
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import Contestant, Workload, batch, size_of
from reference.bench.method import interleave, ratios, spread
from reference.bench.observed import observed_group
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.bench.strategies import Recipe, strategies
from reference.bench.submission import kind, submission_path
from reference.bench.transformer_costs import parameters
from reference.communication.launch import in_job
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_ddp.observed.events import Entry
    from pytest_ddp.observed.inspection.collectives import Collectives

IN_PAPER = "zero1 in the paper"
_BASE = "ddp"
_MEGABYTE = 1e6
_BUCKET_MB = 25.0  # torch's default
_KINDS = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}  # by the beginnings of their names


# On the ranks


def measure_on_ranks(workload: Workload, rounds: int, warm_up: int) -> Raw:
    """Time all trainings in interleaved rounds, then count what one step of each communicates."""
    tokens = batch(workload)
    seconds = time_steps({name: make() for name, make in strategies(workload).items()}, tokens, rounds, warm_up)
    with observed_group() as record:
        traffic = {name: count_step(make, tokens, record) for name, make in strategies(workload).items()}
    return {
        "workload": asdict(workload),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": current_device().type,
        "seconds": seconds,
        "traffic": traffic,
    }


def time_steps(
    trainings: Mapping[str, Contestant], tokens: Tensor, rounds: int, warm_up: int
) -> dict[str, list[float]]:
    """Seconds of each training's steps on the slowest rank, round by round."""
    every = gather(interleave({name: _timed(one, tokens) for name, one in trainings.items()}, rounds, warm_up))
    return {name: [max(ranks) for ranks in zip(*(mine[name] for mine in every), strict=True)] for name in trainings}


def _timed(training: Contestant, tokens: Tensor) -> Callable[[], float]:
    def step() -> float:
        dist.barrier()
        began = time.perf_counter()
        training.step(tokens)
        return time.perf_counter() - began

    return step


def count_step(make: Recipe, tokens: Tensor, record: "Collectives") -> dict[str, dict[str, int]]:
    """The collectives of a training's second step on rank 0, by kind: how many, and the bytes of whole tensors."""
    training = make()
    training.step(tokens)
    record.clear()
    training.step(tokens)
    return gather(by_kind(record.entries, dist.get_world_size()))[0]


def by_kind(entries: "Iterable[Entry]", world_size: int) -> dict[str, dict[str, int]]:
    """How many collectives of each kind a rank entered, and the bytes of their whole tensors.

    A rank passes its own part to an all-gather, and the whole tensor to other collectives.
    """
    counts, sizes = Counter[str](), Counter[str]()
    for entry in entries:
        operation = next((kind for beginning, kind in _KINDS.items() if entry.op.startswith(beginning)), entry.op)
        counts[operation] += 1
        sizes[operation] += entry.bytes * (world_size if operation == "all_gather" else 1)
    return {operation: {"count": counts[operation], "bytes": sizes[operation]} for operation in counts}


# Computed from the raw numbers


def measured_bytes(raw: Raw, name: str) -> dict[str, float]:
    """Bytes that a rank sends in a step, for each kind of collective that carries any."""
    found = {op: sent(op, each["bytes"], raw["world_size"]) for op, each in raw["traffic"][name].items()}
    return {op: size for op, size in found.items() if size}


def formula_bytes(raw: Raw, name: str) -> dict[str, float]:
    """The same by the formula."""
    elements = parameters(*size_of(raw["workload"]["model"]))
    in_paper = name == IN_PAPER
    whole = volume("zero1" if in_paper else kind(name), elements, as_in_paper=in_paper)
    return {op: sent(op, size, raw["world_size"]) for op, size in whole.items()}


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--model", default="512x4", help="a transformer: tiny, small, ..., or WIDTHxLAYERS")
    command.add_argument("--samples", type=int, default=2, help="sequences on each rank")
    command.add_argument("--words", type=int, default=64, help="tokens in each sequence")
    command.add_argument("--rounds", type=int, default=15, help="steps of each training that are measured")
    command.add_argument("--warm-up", type=int, default=2, help="steps before those")
    command.add_argument("--world-size", type=int, default=2, help="ranks to start")
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument(
        "--submission", type=submission_path, metavar="PATH", help="measure a submission beside the references"
    )


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    size_of(options.model)  # a wrong name is refused before ranks are started
    workload = Workload(options.model, options.samples, options.words, _BUCKET_MB, options.submission)
    ranks = None if in_job() else options.world_size
    arguments = (workload, options.rounds, options.warm_up)
    found: Raw = on_ranks(measure_on_ranks, ranks, *arguments, backend=options.backend)
    return found


def evaluate(raw: Raw) -> Result:
    """The table: time and volume of each training; the sentences: what sharding costs, beside the paper."""
    workload = Workload(**raw["workload"])
    return Result(
        name=BENCHMARK.name,
        title=f"A step of the transformer {workload.model} with and without sharding, on {raw['world_size']} ranks "
        f"({raw['backend']}, {raw['device']}), {workload.samples} x {workload.words} tokens per rank; ratio to "
        "ddp; from and to are quartiles",
        columns=[
            Column("training"),
            Column("step", "ms"),
            Column("from", "ms"),
            Column("to", "ms"),
            Column("ratio"),
            Column("from"),
            Column("to"),
            Column("calls"),
            Column("sent", "MB"),
            Column("formula", "MB"),
            Column("off", "%"),
        ],
        rows=[*(_row(raw, name) for name in raw["seconds"]), _paper_row(raw)],
        sentences=[_times(raw), _volumes(raw), *_gloo(raw), _GPU[raw["device"]]],
        raw=raw,
    )


def _row(raw: Raw, name: str) -> list[Any]:
    seconds = raw["seconds"][name]
    step, ratio = spread(seconds).scaled(1e3), ratios(seconds, raw["seconds"][_BASE])
    seen, formula = sum(measured_bytes(raw, name).values()), sum(formula_bytes(raw, name).values())
    count = sum(each["count"] for each in raw["traffic"][name].values())
    volumes = [seen / _MEGABYTE, formula / _MEGABYTE, round(100 * (seen / formula - 1), 2) if formula else None]
    return [
        name,
        step.median,
        step.first,
        step.third,
        ratio.median,
        ratio.first,
        ratio.third,
        count,
        *volumes,
    ]


def _paper_row(raw: Raw) -> list[Any]:
    return [IN_PAPER, *[None] * 8, sum(formula_bytes(raw, IN_PAPER).values()) / _MEGABYTE, None]


def _times(raw: Raw) -> str:
    parts = []
    for name, seconds in raw["seconds"].items():
        if name != _BASE:
            ratio = ratios(seconds, raw["seconds"][_BASE])
            parts.append(f"{ratio.median:.2f} with {name} (quartiles {ratio.first:.2f} to {ratio.third:.2f})")
    return f"Beside ddp, a step takes this many times as long: {', '.join(parts)}."


def _volumes(raw: Raw) -> str:
    parts = []
    for name in raw["traffic"]:
        seen, formula = sum(measured_bytes(raw, name).values()), sum(formula_bytes(raw, name).values())
        parts.append(f"{seen / _MEGABYTE:.2f} MB with {name} (formula {formula / _MEGABYTE:.2f})")
    paper = sum(formula_bytes(raw, IN_PAPER).values()) / _MEGABYTE
    return (
        f"By ring algorithms, a rank sends {', '.join(parts)} in a step; the paper's stage 1 would send "
        f"{paper:.2f} MB, because it reduce-scatters the gradients that ours all-reduces."
    )


def _gloo(raw: Raw) -> list[str]:
    scattered = [name for name in raw["traffic"] if "reduce_scatter" in raw["traffic"][name]]
    if raw["backend"] != "gloo" or not scattered:
        return []
    return [f"gloo runs a reduce-scatter as an all-reduce, so {', '.join(scattered)} sends more than the formula says."]


_GPU = {
    "cpu": "On a GPU, the volumes would be the same; collectives would not take cores from the model.",
    "cuda": "On CPU, the volumes would be the same; collectives and the model would share the cores.",
}


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """Times of a step with quartiles; below, what a rank sends, by kind of collective, beside the formula."""
    picture, [times, volumes] = pictures.panels(
        [
            ("Time of a step: median and quartiles", "", "time (ms)"),
            ("What a rank sends in a step, and by formula (hatched)", "", "sent (MB)"),
        ],
        inches=(8.0, 7.0),
    )
    names = list(raw["seconds"])
    steps = [spread(raw["seconds"][name]).scaled(1e3) for name in names]
    errors = [[step.median - step.first for step in steps], [step.third - step.median for step in steps]]
    times.bar(
        range(len(names)), [step.median for step in steps], 0.6, yerr=errors, color=pictures.COLOURS[0], capsize=4
    )
    _label(times, names)
    for place, name in enumerate([*names, IN_PAPER]):
        if name != IN_PAPER:
            _draw_stack(volumes, place - 0.2, measured_bytes(raw, name), hatch="")
        _draw_stack(volumes, place + 0.2, formula_bytes(raw, name), hatch="//")
    _label(volumes, [*names, IN_PAPER])
    volumes.set(ylim=(0, volumes.get_ylim()[1] * 1.15))
    _legend(volumes)
    return {BENCHMARK.name: picture}


_COLOURS = dict(zip(("all_reduce", "broadcast", "all_gather", "reduce_scatter"), pictures.COLOURS, strict=False))


def _draw_stack(axes: "Axes", place: float, sizes: Mapping[str, float], hatch: str) -> None:
    bottom = 0.0
    for operation, size in sizes.items():
        axes.bar(
            place,
            size / _MEGABYTE,
            width=0.36,
            bottom=bottom / _MEGABYTE,
            label=operation.replace("_", "-"),
            color=_COLOURS.get(operation, pictures.COLOURS[-1]),
            alpha=0.55 if hatch else 1.0,
            edgecolor="white",
            hatch=hatch,
        )
        bottom += size


def _label(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names])
    axes.grid(visible=False, axis="x")


def _legend(axes: "Axes") -> None:
    """One entry for each kind of collective."""
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(reversed(labels), reversed(handles), strict=True))
    axes.legend(list(first.values()), list(first), ncols=len(first), loc="upper center")


BENCHMARK = Benchmark(
    name="step",
    help="Time and communicated bytes of a step with and without sharding, against the formulas.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
