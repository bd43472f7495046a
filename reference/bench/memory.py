"""`memory`: the bytes of a training on each rank, measured and on paper, with and without sharding.

    python -m reference.bench memory --model 50m --world-size 2

Every rank trains two steps of each strategy, one strategy after the other, and notes what its tensors hold at fixed
moments. The first step shows what the training keeps, by differences:

    parameters       held at initialisation
    gradients        held before the optimizer's step, less the parameters
    optimizer state  held after the optimizer's step, less parameters and gradients

In the second step all of it exists. What forward adds then are the activations, and the peak is that of any later step.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference.bench import pictures
from reference.bench.accounting import StateBytes, exact, paper
from reference.bench.allocations import Watch, watch_allocations
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import Contestant, Workload, batch, size_of
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.bench.strategies import Recipe, strategies
from reference.bench.submission import kind, submission_path
from reference.bench.transformer_costs import Batch, activation_bytes, parameters, shapes
from reference.communication.launch import in_job
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEGABYTE = 1e6
_BUCKET_MB = 25.0  # torch's default
_UNEXPLAINED = 0.001  # of all states
MOMENTS = ("initialisation", "after forward", "before the step", "after the step")


@dataclass(frozen=True)
class Kept:
    """What a training holds on one rank, in bytes.

    Attributes:
        states: parameters, gradients and optimizer state.
        activations: what the second step's forward adds.
        peak: the most that is held in the second step.
    """

    states: StateBytes
    activations: int
    peak: int


# On the ranks


def measure_on_ranks(workload: Workload) -> Raw:
    """Train two steps of each strategy: the moments of each rank."""
    tokens = batch(workload)
    found = {name: gather(watch_training(recipe, tokens)[1]) for name, recipe in strategies(workload).items()}
    return {
        "workload": asdict(workload),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": current_device().type,
        "moments": found,
    }


def watch_training(recipe: Recipe, tokens: Tensor) -> tuple[Contestant, list[dict[str, Any]]]:
    """A training after two steps, and their moments: names, bytes held, peak since the moment before."""
    with watch_allocations(tokens.device) as watch:
        training = recipe()
        watch.mark("initialisation")
        _step(training, tokens, watch)
        training.optimizer.zero_grad()
        watch.mark("between steps")
        _step(training, tokens, watch)
    return training, [asdict(moment) for moment in watch.moments]


def _step(training: Contestant, tokens: Tensor, watch: Watch) -> None:
    loss = training.loss(tokens)
    watch.mark("after forward")
    torch.autograd.backward(loss)
    training.finish()
    del loss
    watch.mark("before the step")
    training.optimizer.step()
    watch.mark("after the step")


# Computed from the moments


def kept(moments: Sequence[Mapping[str, Any]]) -> Kept:
    """What a rank holds, from the moments of its two steps."""
    initial, _, before, after, between, forward, before_2, after_2 = moments
    states = StateBytes(initial["bytes"], before["bytes"] - initial["bytes"], after["bytes"] - before["bytes"])
    peak = max(moment["peak"] for moment in (forward, before_2, after_2))
    return Kept(states, forward["bytes"] - between["bytes"], peak)


@dataclass(frozen=True)
class Paper:
    """What the accounting says about a measured training.

    Attributes:
        parameters: elements of all parameters.
        activations: bytes on each rank after forward.
        formula: bytes of states on each rank, if everything divides evenly.
        exact: the same, counted from the shapes for one rank.
    """

    parameters: int
    activations: int
    formula: StateBytes
    exact: StateBytes


def on_paper(raw: Raw, name: str, rank: int) -> Paper:
    """The accounting for a training of the raw numbers, on one rank."""
    workload, world_size = Workload(**raw["workload"]), raw["world_size"]
    size, vocabulary = size_of(workload.model)
    elements = parameters(size, vocabulary)
    return Paper(
        elements,
        activation_bytes(size, Batch(workload.samples, workload.words), vocabulary),
        paper(kind(name), elements, world_size),
        exact(kind(name), shapes(size, vocabulary), world_size, rank),
    )


def fullest(every: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    """The rank that keeps most, given the moments of every rank."""
    totals = [kept(moments).states.total for moments in every]
    return totals.index(max(totals))


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--model", default="50m", help="a transformer: tiny, small, ..., or WIDTHxLAYERS")
    command.add_argument("--samples", type=int, default=2, help="sequences on each rank")
    command.add_argument("--words", type=int, default=128, help="tokens in each sequence")
    command.add_argument("--world-size", type=int, default=2, help="ranks to start")
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument(
        "--submission", type=submission_path, metavar="PATH", help="measure a submission beside the references"
    )


def measure(options: Namespace) -> Raw:
    """Start the ranks and train on them."""
    size_of(options.model)  # a wrong name is refused before ranks are started
    workload = Workload(options.model, options.samples, options.words, _BUCKET_MB, options.submission)
    found: Raw = on_ranks(measure_on_ranks, None if in_job() else options.world_size, workload, backend=options.backend)
    return found


def evaluate(raw: Raw) -> Result:
    """The table: what each rank keeps, beside the paper; the sentences: where they differ, and why.

    The parameters are what a rank holds at initialisation. `kept` is all that it keeps between steps.
    """
    workload = Workload(**raw["workload"])
    return Result(
        name=BENCHMARK.name,
        title=f"Memory of the transformer {workload.model} on {raw['world_size']} ranks ({raw['backend']}, "
        f"{raw['device']}), {workload.samples} x {workload.words} tokens per rank, float32, AdamW; kept and paper: "
        "bytes per parameter; saved: activations",
        columns=[
            Column("training"),
            Column("rank"),
            *(Column(name, "MB") for name in ("params", "grads", "state", "saved")),
            Column("kept", "bytes"),
            Column("paper", "bytes"),
            Column("off", "%"),
            *(Column(name, "MB") for name in ("before step", "after step", "peak")),
        ],
        rows=[_row(raw, name, rank) for name, every in raw["moments"].items() for rank in range(len(every))],
        sentences=[_saving(raw), *_explanations(raw), _activations(raw), _GPU[raw["device"]]],
        raw=raw,
    )


def _row(raw: Raw, name: str, rank: int) -> list[Any]:
    moments, formula = raw["moments"][name][rank], on_paper(raw, name, rank)
    found = kept(moments)
    states = found.states
    held = {moment["name"]: moment["bytes"] for moment in moments[:4]}
    return [
        name,
        rank,
        *(each / MEGABYTE for each in (states.parameters, states.gradients, states.optimizer, found.activations)),
        states.total / formula.parameters,
        formula.formula.total / formula.parameters,
        round(100 * (states.total / formula.formula.total - 1), 2) + 0.0,  # never -0
        *(held[moment] / MEGABYTE for moment in ("before the step", "after the step")),
        found.peak / MEGABYTE,
    ]


def _saving(raw: Raw) -> str:
    parts = []
    for name, every in raw["moments"].items():
        rank = fullest(every)
        formula, states = on_paper(raw, name, rank), kept(every[rank]).states
        parts.append(f"{states.total / formula.parameters:.2f} with {name}")
    return f"On the fullest rank, parameters, gradients and AdamW's state take {', '.join(parts)} bytes per parameter."


def _explanations(raw: Raw) -> list[str]:
    """For each training, why its fullest rank differs from the formula: what the shapes explain, and what is left."""
    found = []
    for name, every in raw["moments"].items():
        rank = fullest(every)
        formula, total = on_paper(raw, name, rank), kept(every[rank]).states.total
        wanted, counted = formula.formula.total, formula.exact.total
        text = (
            f"{name}: {100 * (total / wanted - 1):+.2f}% from the paper, {100 * (counted / wanted - 1):+.2f}% because "
        )
        text += _REASONS[kind(name)]
        if abs(total - counted) > _UNEXPLAINED * wanted:
            text += f"; {100 * (total - counted) / wanted:+.2f}% are tensors that the references do not keep"
        found.append(text + ".")
    return found


_REASONS = {
    "ddp": "AdamW has step counters",
    "zero1": "whole parameters are dealt out, not equal shares",
    "fsdp": "every rank keeps the vectors whole",
}

_GPU = {
    "cuda": "The GPU's allocator rounds each tensor up to 512 bytes, and fused norms save fewer activations.",
    "cpu": "On a GPU, states would be the same; fused norms would save fewer activations, and NCCL would need buffers.",
}


def _activations(raw: Raw) -> str:
    formula = on_paper(raw, next(iter(raw["moments"])), 0).activations
    seen = {name: kept(every[0]).activations for name, every in raw["moments"].items()}
    parts = ", ".join(f"{held / MEGABYTE:.1f} MB with {name}" for name, held in seen.items())
    return f"Forward adds {parts}; the activations on paper are {formula / MEGABYTE:.1f} MB, sharded or not."


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """Stacked bars of each training's fullest rank beside the paper's, and what it holds from moment to moment."""
    picture, [bars, course] = pictures.panels(
        [
            ("What the fullest rank keeps, and what the paper says (hatched)", "", "memory (MB)"),
            ("What that rank holds in the first step", "", "memory (MB)"),
        ],
        inches=(8.0, 7.5),
    )
    _draw_bars(bars, raw)
    for (name, every), colour in zip(raw["moments"].items(), pictures.COLOURS, strict=False):
        held = {moment["name"]: moment["bytes"] / MEGABYTE for moment in every[fullest(every)][:4]}
        course.plot(MOMENTS, [held[moment] for moment in MOMENTS], "o-", label=name, color=colour)
    course.set(ylim=(0, None))
    course.legend()
    return {BENCHMARK.name: picture}


def _draw_bars(axes: "Axes", raw: Raw) -> None:
    names = list(raw["moments"])
    for place, name in enumerate(names):
        rank = fullest(raw["moments"][name])
        found, formula = kept(raw["moments"][name][rank]), on_paper(raw, name, rank)
        _draw_stack(axes, place - 0.2, found.states, found.activations, labelled=place == 0)
        _draw_stack(axes, place + 0.2, formula.formula, formula.activations, hatch="//")
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axes.grid(visible=False, axis="x")
    axes.set(ylim=(0, axes.get_ylim()[1] * 1.15))  # room for the legend
    axes.legend(ncols=4, loc="upper center")


def _draw_stack(
    axes: "Axes", place: float, states: StateBytes, activations: float, *, labelled: bool = False, hatch: str = ""
) -> None:
    parts = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "optimizer state": states.optimizer,
        "activations": activations,
    }
    bottom = 0.0
    for (label, height), colour in zip(parts.items(), pictures.COLOURS, strict=False):
        axes.bar(
            place,
            height / MEGABYTE,
            width=0.36,
            bottom=bottom / MEGABYTE,
            label=label if labelled else None,
            color=colour,
            alpha=0.55 if hatch else 1.0,
            edgecolor="white",
            hatch=hatch,
        )
        bottom += height


BENCHMARK = Benchmark(
    name="memory",
    help="Bytes of parameters, gradients, optimizer state and activations on each rank, against the paper.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
