"""`step`: what sharding costs: time of a step and bytes that are communicated, measured and by formula.

    python -m reference.bench step --model 512x4 --world-size 2

Times are from interleaved rounds on the same ranks; a ratio to `ddp` is taken within a round. Then each training takes
one more step in a process group that records every operation: that is the measured volume (`step_volume`).
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import Workload, batch
from reference.bench.method import ratios, spread
from reference.bench.observed import observed_group
from reference.bench.result import Column, Raw, Result
from reference.bench.step_times import STEP_COLUMNS, repeatability, step_cells, time_steps
from reference.bench.step_volume import IN_PAPER, count_step, formula_bytes, measured_bytes, without_formula
from reference.bench.strategies import strategies
from reference.bench.training_options import (
    add_model_option,
    add_round_options,
    add_training_options,
    train_on_ranks,
    workload_of,
)
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASE = "ddp"
_MEGABYTE = 1e6


def measure_on_ranks(workload: Workload, rounds: int, warm_up: int, seconds: float) -> Raw:
    """Time all trainings in interleaved rounds, then count what one step of each communicates."""
    tokens = batch(workload)
    trainings = {name: make() for name, make in strategies(workload).items()}
    times = time_steps(trainings, tokens, rounds, warm_up, seconds)
    del trainings
    with observed_group() as record:
        traffic = {name: count_step(make, tokens, record) for name, make in strategies(workload).items()}
    return {
        "workload": asdict(workload),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": current_device().type,
        "seconds": times,
        "traffic": traffic,
    }


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_option(command, "512x4")
    add_training_options(command)
    add_round_options(command, rounds=15, warm_up=1, seconds=60.0, what="all rounds")


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    workload = workload_of(options, options.model)
    return train_on_ranks(options, measure_on_ranks, workload, options.rounds, options.warm_up, options.seconds)


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
            *STEP_COLUMNS,
            Column("ratio"),
            Column("from"),
            Column("to"),
            Column("calls"),
            Column("sent", "MB"),
            Column("formula", "MB"),
            Column("off", "%"),
        ],
        rows=[*(_row(raw, name) for name in raw["seconds"]), _paper_row(raw)],
        sentences=[
            _times(raw),
            *_repeated(raw),
            _volumes(raw),
            *_about_others(raw),
            *_gloo(raw),
            _GPU[raw["device"]],
        ],
        raw=raw,
    )


def _row(raw: Raw, name: str) -> list[Any]:
    seconds = raw["seconds"][name]
    ratio = ratios(seconds, raw["seconds"][_BASE])
    seen, formula = sum(measured_bytes(raw, name).values()), sum(formula_bytes(raw, name).values())
    count = sum(each["count"] for each in raw["traffic"][name].values())
    volumes = [seen / _MEGABYTE, formula / _MEGABYTE, round(100 * (seen / formula - 1), 2) if formula else None]
    return [
        name,
        *step_cells(seconds),
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


def _repeated(raw: Raw) -> list[str]:
    return repeatability(raw["seconds"], [name for name in raw["seconds"] if name != _BASE], _BASE)


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


def _about_others(raw: Raw) -> list[str]:
    """For each training, the operations that are counted, but are not in the volumes."""
    found = []
    for name in raw["traffic"]:
        parts = [
            f"{op} {each['count']} times with {each['bytes'] / _MEGABYTE:.2f} MB"
            for op, each in without_formula(raw, name).items()
        ]
        if parts:
            found.append(f"{name} also calls {', '.join(parts)} of tensors: no formula counts them in what is sent.")
    return found


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
            pictures.stack(volumes, place - 0.2, _megabytes(measured_bytes(raw, name)), _COLOURS, is_labelled=True)
        pictures.stack(
            volumes, place + 0.2, _megabytes(formula_bytes(raw, name)), _COLOURS, is_labelled=True, is_formula=True
        )
    _label(volumes, [*names, IN_PAPER])
    volumes.set(ylim=(0, volumes.get_ylim()[1] * 1.15))
    _legend(volumes)
    return {BENCHMARK.name: picture}


def _megabytes(sizes: Mapping[str, float]) -> dict[str, float]:
    """The parts of a bar: what a rank sends in each kind of collective."""
    return {operation.replace("_", "-"): size / _MEGABYTE for operation, size in sizes.items()}


_COLOURS = pictures.colours(("all-reduce", "broadcast", "all-gather", "reduce-scatter"))


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
