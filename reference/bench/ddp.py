"""`ddp`: what a training step costs with each way to average gradients, on several sizes of one model.

    python -m reference.bench ddp --world-size 2 --models 128x4 256x4 512x4

All wrappers train copies of one model on the same ranks, one step each in turn, and another one first in each round. A
step is over when its slowest rank is done. `none` takes the same step without any exchange, so the difference within a
round is what a wrapper adds.

Communication is read from a few further steps under torch's profiler: how long at least one collective runs, and how
long one runs while the rank computes nothing (*exposed*). Hidden communication is not free on CPUs: its threads use the
cores that the model needs. So a wrapper can add more time than it exposes.

Memory is the most that tensors hold at once from the model to the end of the second step.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 5.1.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import (
    NONE,
    WRAPPERS,
    Contestant,
    Workload,
    batch,
    build_model,
    contestant,
    submitted_names,
)
from reference.bench.method import Spread, cores, differences, interleave, ratios, repeat_error, spread
from reference.bench.profiling import peak_bytes, profile_intervals
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.bench.submission import is_submitted, kind, submission_path
from reference.communication.launch import in_job
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = (NONE, *WRAPPERS)
_MODELS = ("128x4", "256x4", "512x4")
_FEWEST = 5  # rounds, however long they take
_PROFILED_STEPS = 3
_MEMORY_STEPS = 2  # wrappers with buckets hold them from the first step on


# On the ranks


def measure_on_ranks(workloads: Sequence[Workload], rounds: int, warm_up: int, seconds: float) -> Raw:
    """Measure each workload: memory, then times in interleaved rounds, then communication under the profiler.

    Args:
        workloads: one for each size of the model.
        rounds: steps of each wrapper, at most.
        warm_up: steps before those.
        seconds: time for the rounds of one workload; at least five rounds are measured.
    """
    models = [_measure_one(workload, rounds, warm_up, seconds) for workload in workloads]
    return {
        "backend": dist.get_backend(),
        "device": current_device().type,
        "world_size": dist.get_world_size(),
        "models": models,
    }


def _measure_one(workload: Workload, rounds: int, warm_up: int, seconds: float) -> Raw:
    parameters = sum(parameter.numel() for parameter in build_model(workload.model).parameters())
    tokens = batch(workload)
    names = (*NAMES, *submitted_names(workload))
    peaks = {name: _peak(name, workload, tokens) for name in names}
    contestants = {name: contestant(name, workload) for name in names}
    return {
        "workload": asdict(workload),
        "parameters": parameters,
        "peak_bytes": peaks,
        "seconds": time_steps(contestants, tokens, rounds, warm_up, seconds),
        "profiled": {name: profile_steps(one, tokens) for name, one in contestants.items()},
    }


def _peak(name: str, workload: Workload, tokens: Tensor) -> int:
    def train() -> None:
        one = contestant(name, workload)
        for _ in range(_MEMORY_STEPS):
            one.step(tokens)

    return max(gather(peak_bytes(train)))


def time_steps(
    contestants: Mapping[str, Contestant], tokens: Tensor, rounds: int, warm_up: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of each contestant's steps on the slowest rank, round by round; the same on every rank."""
    steps = {name: _timed(one, tokens) for name, one in contestants.items()}
    first = interleave(steps, rounds=1, warm_up=warm_up)
    one_round = max(gather(sum(times[0] for times in first.values())))
    mine = interleave(steps, rounds=max(min(_FEWEST, rounds), min(rounds, int(seconds / one_round))), warm_up=0)
    every = gather(mine)
    return {name: [max(ranks) for ranks in zip(*(one[name] for one in every), strict=True)] for name in mine}


def _timed(one: Contestant, tokens: Tensor) -> Callable[[], float]:
    def step() -> float:
        dist.barrier()
        began = time.perf_counter()
        one.step(tokens)
        return time.perf_counter() - began

    return step


def profile_steps(one: Contestant, tokens: Tensor) -> list[dict[str, float]]:
    """For each rank and profiled step: seconds of the step, of communication, and of exposed communication."""
    mine = []
    for _ in range(_PROFILED_STEPS):
        dist.barrier()  # before the profile, in which it would count as communication
        found = profile_intervals(lambda: one.step(tokens))
        mine.append(
            {"step": found.seconds, "communication": found.communication_seconds, "exposed": found.exposed_seconds}
        )
    return [step for rank in gather(mine) for step in rank]


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--models", nargs="+", default=_MODELS, help="transformers: small, ..., or WIDTHxLAYERS")
    add_workload_options(command)


def add_workload_options(command: ArgumentParser) -> None:
    """Add the options of every command that trains wrappers in interleaved rounds."""
    command.add_argument("--world-size", type=int, default=2, help="number of ranks")
    command.add_argument("--samples", type=int, default=2, help="sequences in the batch of a rank")
    command.add_argument("--words", type=int, default=64, help="tokens in a sequence")
    command.add_argument("--bucket-mb", type=float, default=1.0, help="size of buckets, in 1024 * 1024 bytes")
    command.add_argument("--rounds", type=int, default=20, help="steps of each variant, at most")
    command.add_argument("--warm-up", type=int, default=2, help="steps of each variant before those")
    command.add_argument("--seconds", type=float, default=10.0, help="time for the rounds of one model")
    command.add_argument(
        "--submission", type=submission_path, metavar="PATH", help="train a submission's wrappers beside the references"
    )
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument("--device", choices=["cpu", "cuda"], help="to train on (default: cuda with nccl, else cpu)")


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    raw: Raw = on_ranks(
        measure_on_ranks,
        None if in_job() else options.world_size,
        [
            Workload(name, options.samples, options.words, options.bucket_mb, options.submission)
            for name in options.models
        ],
        options.rounds,
        options.warm_up,
        options.seconds,
        backend=options.backend,
        device=options.device,
    )
    return {**raw, "cores": cores()}


# From the raw numbers


def step_spread(model: Raw, name: str) -> Spread:
    """Seconds of a wrapper's step on this model."""
    return spread(model["seconds"][name])


def added(model: Raw, name: str) -> Spread:
    """Seconds that a wrapper adds to the step without an exchange, within each round."""
    return differences(model["seconds"][name], model["seconds"][NONE])


def profiled(model: Raw, name: str, what: str) -> float:
    """The median over ranks and profiled steps of `communication`, `exposed` or `step`, in seconds."""
    return float(median(step[what] for step in model["profiled"][name]))


def exposed_share(model: Raw, name: str) -> float:
    """The median share of a profiled step in which a collective runs and nothing is computed."""
    return float(median(step["exposed"] / step["step"] for step in model["profiled"][name]))


def hidden_share(model: Raw, name: str) -> float | None:
    """The median share of communication that runs while the rank computes; None without communication."""
    shares = [1 - one["exposed"] / one["communication"] for one in model["profiled"][name] if one["communication"]]
    return median(shares) if shares else None


def evaluate(raw: Raw) -> Result:
    """The table of all wrappers and models, and what it says about the largest model."""
    first = raw["models"][0]["workload"]
    return Result(
        name=BENCHMARK.name,
        title=f"A training step on {raw['world_size']} ranks ({raw['backend']}, {raw['device']}), "
        f"{first['samples']} x {first['words']} tokens per rank, buckets of {first['bucket_mb']:g} MiB",
        columns=[
            Column("model"),
            Column("parameters", "million"),
            Column("wrapper"),
            Column("step", "ms"),
            Column("first quartile", "ms"),
            Column("third quartile", "ms"),
            Column("added", "ms"),
            Column("collectives", "ms"),
            Column("exposed", "ms"),
            Column("exposed share", "% of step"),
            Column("peak memory", "MB"),
        ],
        rows=[_row(model, name) for model in raw["models"] for name in model["seconds"]],
        sentences=_sentences(raw),
        raw=raw,
    )


def _row(model: Raw, name: str) -> list[Any]:
    step = step_spread(model, name).scaled(1e3)
    return [
        model["workload"]["model"],
        model["parameters"] / 1e6,
        name,
        step.median,
        step.first,
        step.third,
        added(model, name).median * 1e3 if name != NONE else None,
        profiled(model, name, "communication") * 1e3,
        profiled(model, name, "exposed") * 1e3,
        exposed_share(model, name) * 100,
        model["peak_bytes"][name] / 1e6,
    ]


def _sentences(raw: Raw) -> list[str]:
    largest = max(raw["models"], key=lambda model: model["parameters"])
    wrappers = [name for name in largest["seconds"] if hidden_share(largest, name) is not None]
    sentences = [_about_speed(largest, wrappers)] if wrappers else []
    hidden = ", ".join(f"{name} {hidden_share(largest, name):.0%}" for name in wrappers)
    if hidden:
        sentences.append(f"Communication hidden behind computation: {hidden}.")
    sentences += [_about_submitted(largest, name) for name in largest["seconds"] if is_submitted(name)]
    if wrappers:
        error = max(repeat_error(largest["seconds"][name], largest["seconds"][NONE]) for name in wrappers)
        sentences.append(f"Measured twice, in every other round, the ratios to {NONE} differ by at most {error:.0%}.")
    if raw["device"] == "cpu":
        sentences.append(_about_cpu(raw))
    return sentences


def _about_speed(model: Raw, wrappers: Sequence[str]) -> str:
    fastest = min(wrappers, key=lambda name: step_spread(model, name).median)
    slowest = max(wrappers, key=lambda name: step_spread(model, name).median)
    what = f"{model['workload']['model']}, {model['parameters'] / 1e6:.1f} million parameters"
    relative = _relative(model, fastest, slowest)
    return f"On the largest model ({what}), {fastest} is the fastest: its step takes {relative}."


def _about_submitted(model: Raw, name: str) -> str:
    """A submission's wrapper beside the reference of the same kind, or beside torch's."""
    if hidden_share(model, name) is None:
        return f"The step of {name} has no collective: nothing averages its gradients."
    beside = kind(name) if kind(name) in WRAPPERS else "torch"
    return f"The step of {name} takes {_relative(model, name, beside)}."


def _relative(model: Raw, name: str, beside: str) -> str:
    ratio = ratios(model["seconds"][name], model["seconds"][beside])
    return f"{ratio.median:.2f} of {beside}'s (quartiles {ratio.first:.2f} to {ratio.third:.2f})"


def _about_cpu(raw: Raw) -> str:
    return (
        f"{raw['world_size']} ranks and their communication threads share {raw['cores']} cores, so hidden "
        "communication slows the computation; a GPU has units of its own for copies between devices."
    )


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
    shown = [exposed_share(model, name) * step.median for name, step in zip(names, steps, strict=True)]
    rest = [step.median - part for step, part in zip(steps, shown, strict=True)]
    places = range(len(names))
    errors = list(zip(*((step.median - step.first, step.third - step.median) for step in steps), strict=True))
    computing, waiting, sending = pictures.COLOURS[0], pictures.COLOURS[1], pictures.COLOURS[5]
    axes.bar(places, rest, width=0.5, color=computing, label="computation")
    axes.bar(places, shown, 0.5, rest, yerr=errors, capsize=3, color=waiting, label="exposed communication")
    communication = [profiled(model, name, "communication") * 1e3 for name in names]
    beside = [place + 0.34 for place in places]
    axes.bar(beside, communication, width=0.12, color=sending, label="all communication (profiled)")
    axes.set_xticks(list(places), [name.replace(" ", "\n") for name in names])
    axes.legend()


def _draw_lines(axes: "Axes", models: Sequence[Raw]) -> None:
    ordered = sorted(models, key=lambda model: model["parameters"])
    millions = [model["parameters"] / 1e6 for model in ordered]
    wrappers = [name for name in ordered[0]["seconds"] if name != NONE]
    for name, colour in pictures.colours(wrappers).items():
        found = [ratios(model["seconds"][name], model["seconds"][NONE]) for model in ordered]
        pictures.line(axes, millions, [(one.first, one.median, one.third) for one in found], name, colour)
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
