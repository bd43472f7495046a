"""`ddp`: what a training step costs with each way to average gradients, on several sizes of one model.

    python -m reference.bench ddp --world-size 2 --models 64x4 128x4 256x4

All wrappers train copies of one model on the same ranks, one step each in turn, and another one first in each round. A
step is over when its slowest rank is done. `none` takes the same step without any exchange, so the difference within a
round is what a wrapper adds. `wrapper_steps` measures.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 5.1.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import NONE, WRAPPERS
from reference.bench.method import ratios
from reference.bench.result import Column, Raw, Result
from reference.bench.step_times import STEP_COLUMNS, compared, repeatability, step_cells
from reference.bench.submission import is_submitted, kind
from reference.bench.training_options import (
    add_bucket_option,
    add_round_options,
    add_training_options,
    train_on_ranks,
    workload_of,
)
from reference.bench.wrapper_steps import (
    added,
    hidden_share,
    measure_on_ranks,
    profiled_step,
    seconds_of,
    share,
    step_spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODELS = ("64x4", "128x4", "256x4")


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--models", nargs="+", default=_MODELS, help="transformers: tiny, small, ..., or WIDTHxLAYERS")
    add_training_options(command)
    add_bucket_option(command)
    add_round_options(
        command, rounds=20, warm_up=1, seconds=85.0, what="all models; those that do not fit are left out"
    )


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    workloads = [workload_of(options, model, options.bucket_mb) for model in options.models]
    return train_on_ranks(options, measure_on_ranks, workloads, options.rounds, options.warm_up, options.seconds)


def evaluate(raw: Raw) -> Result:
    """The table of all wrappers and models, and what it says about the largest model.

    `size` is the number of parameters, `exposed` in percent is a share of the step, `profiled` is a step under the
    profiler.
    """
    first = raw["models"][0]["workload"]
    return Result(
        name=BENCHMARK.name,
        title=f"A training step on {raw['world_size']} ranks ({raw['backend']}, {raw['device']}), "
        f"{first['samples']} x {first['words']} tokens per rank, buckets of {first['bucket_mb']:g} MiB; from and to "
        "are quartiles",
        columns=[
            Column("model"),
            Column("size", "10^6"),
            Column("wrapper"),
            *STEP_COLUMNS,
            Column("added", "ms"),
            Column("collectives", "ms"),
            Column("exposed", "ms"),
            Column("exposed", "%"),
            Column("profiled", "ms"),
            Column("peak", "MB"),
        ],
        rows=[_row(model, name) for model in raw["models"] for name in model["seconds"]],
        sentences=_sentences(raw),
        raw=raw,
    )


def _row(model: Raw, name: str) -> list[Any]:
    return [
        model["workload"]["model"],
        model["parameters"] / 1e6,
        name,
        *step_cells(model["seconds"][name]),
        added(model, name).median * 1e3 if name != NONE else None,
        seconds_of(model, name, "communication") * 1e3,
        seconds_of(model, name, "exposed") * 1e3,
        share(model, name, "exposed") * 100,
        profiled_step(model, name) * 1e3,
        model["peak_bytes"][name] / 1e6,
    ]


def _sentences(raw: Raw) -> list[str]:
    largest = max(raw["models"], key=lambda model: model["parameters"])
    wrappers = [name for name in largest["seconds"] if hidden_share(largest, name) is not None]
    sentences = _about_wrappers(largest, wrappers) if wrappers else []
    if raw["world_size"] == 1:
        sentences.append("A single rank has none to exchange with: what a wrapper adds is its own work.")
    else:
        sentences += [_about_submitted(largest, name) for name in largest["seconds"] if is_submitted(name)]
    sentences += repeatability(largest["seconds"], [name for name in largest["seconds"] if name != NONE], NONE)
    return [*sentences, *_about_left_out(raw), _about_device(raw)]


def _about_wrappers(model: Raw, wrappers: Sequence[str]) -> list[str]:
    fastest = min(wrappers, key=lambda name: step_spread(model, name).median)
    slowest = max(wrappers, key=lambda name: step_spread(model, name).median)
    what = f"{model['workload']['model']}, {model['parameters'] / 1e6:.1f} million parameters"
    relative = compared(model["seconds"], fastest, slowest)
    hidden = ", ".join(f"{name} {hidden_share(model, name):.0%}" for name in wrappers)
    return [
        f"On the largest model ({what}), {fastest} is the fastest: its step takes {relative}.",
        f"Communication hidden behind computation: {hidden}.",
        _about_profiler(model, wrappers),
    ]


def _about_profiler(model: Raw, wrappers: Sequence[str]) -> str:
    """By how much the profiler makes steps longer, which is why only shares of profiled steps count."""
    longer = [profiled_step(model, name) / step_spread(model, name).median for name in wrappers]
    return (
        f"Under the profiler a step takes {min(longer):.1f} to {max(longer):.1f} times as long; collectives and "
        "exposed are the same shares of the step without it."
    )


def _about_submitted(model: Raw, name: str) -> str:
    """A submission's wrapper beside the reference of the same kind, or beside torch's."""
    if hidden_share(model, name) is None:
        return f"The step of {name} has no collective: nothing averages its gradients."
    beside = kind(name) if kind(name) in WRAPPERS else "torch"
    return f"The step of {name} takes {compared(model['seconds'], name, beside)}."


def _about_left_out(raw: Raw) -> list[str]:
    return [
        f"{model['model']} is left out: it would take about {math.ceil(model['needed'])} s, and the smaller models "
        f"leave {math.floor(max(0.0, model['left']))} s; give more --seconds."
        for model in raw["left_out"]
    ]


def _about_device(raw: Raw) -> str:
    if raw["device"] == "cpu":
        return (
            f"{raw['world_size']} ranks and their communication threads share {raw['cores']} cores, so hidden "
            "communication slows the computation; a GPU has units of its own for copies between devices."
        )
    if raw["backend"] == "gloo":
        return "gloo copies gradients through the host and adds them on its cores; nccl does both on the GPUs."
    if raw["world_size"] == 1:
        return "nccl runs no kernel for a single rank; with more GPUs, its kernels would run beside the model's."
    return "Kernels of nccl run beside the model's on each GPU and take few of its units."


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """Bars of the step's parts on the largest model, and lines of the step relative to `none` over model sizes."""
    where = f"{raw['world_size']} ranks, {raw['backend']}, {raw['device']}"
    largest = max(raw["models"], key=lambda model: model["parameters"])
    name = f"{largest['workload']['model']}, {largest['parameters'] / 1e6:.1f} million parameters"
    picture, (bars, lines) = pictures.panels(
        [
            (f"A training step of {name} ({where})", "", "time (ms)"),
            ("Step relative to the same step without exchange, median and quartiles", "parameters (million)", "ratio"),
        ],
        inches=(8.0, 8.0),
    )
    _draw_bars(bars, largest)
    _draw_lines(lines, raw["models"])
    return {BENCHMARK.name: picture}


def _draw_bars(axes: "Axes", model: Raw) -> None:
    """A bar for the step, split into exposed communication and the rest; a thin one for all communication."""
    names = list(model["seconds"])
    steps = [step_spread(model, name).scaled(1e3) for name in names]
    shown = [seconds_of(model, name, "exposed") * 1e3 for name in names]
    rest = [step.median - part for step, part in zip(steps, shown, strict=True)]
    places = range(len(names))
    errors = list(zip(*((step.median - step.first, step.third - step.median) for step in steps), strict=True))
    computing, waiting, sending = pictures.COLOURS[0], pictures.COLOURS[1], pictures.COLOURS[5]
    axes.bar(places, rest, width=0.5, color=computing, label="computation")
    axes.bar(places, shown, 0.5, rest, yerr=errors, capsize=3, color=waiting, label="exposed communication")
    communication = [seconds_of(model, name, "communication") * 1e3 for name in names]
    beside = [place + 0.34 for place in places]
    axes.bar(beside, communication, width=0.12, color=sending, label="all communication")
    axes.set_xticks(list(places), [name.replace(" ", "\n") for name in names])
    axes.legend()


def _draw_lines(axes: "Axes", models: Sequence[Raw]) -> None:
    ordered = sorted(models, key=lambda model: model["parameters"])
    millions = [model["parameters"] / 1e6 for model in ordered]
    wrappers = [name for name in ordered[0]["seconds"] if name != NONE]
    colours = pictures.colours(dict.fromkeys(map(kind, wrappers)))
    for name in wrappers:
        style = "o--" if is_submitted(name) else "o-"
        found = [ratios(model["seconds"][name], model["seconds"][NONE]) for model in ordered]
        quartiles = [(one.first, one.median, one.third) for one in found]
        pictures.line(axes, millions, quartiles, name, colours[kind(name)], style=style)
    axes.axhline(1, color="black", linewidth=1)
    pictures.tick_at(axes, millions)
    axes.legend(ncols=2)


BENCHMARK = Benchmark(
    name="ddp",
    help="Time, communication and memory of a training step with each data-parallel wrapper.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
