"""`memory`: the bytes of a training on each rank, measured and on paper, with and without sharding.

    python -m reference.bench memory --model 50m --world-size 2

`memory_moments` measures: what tensors hold at initialisation, after forward, before the optimizer's step and after it.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from reference.bench import pictures
from reference.bench.accounting import StateBytes
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import Workload
from reference.bench.memory_moments import MOMENTS, fullest, kept, measure_on_ranks, on_paper
from reference.bench.result import Column, Raw, Result
from reference.bench.submission import kind
from reference.bench.training_options import add_model_option, add_training_options, train_on_ranks, workload_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEGABYTE = 1e6
_UNEXPLAINED = 0.001  # of all states


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_option(command, "50m")
    add_training_options(command, words=128)


def measure(options: Namespace) -> Raw:
    """Start the ranks and train on them."""
    return train_on_ranks(options, measure_on_ranks, workload_of(options, options.model))


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
        measured, on_the_paper = _parts(found.states, found.activations), _parts(formula.formula, formula.activations)
        colours = pictures.colours(measured)
        pictures.stack(axes, place - 0.2, measured, colours, is_labelled=place == 0)
        pictures.stack(axes, place + 0.2, on_the_paper, colours, is_formula=True)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axes.grid(visible=False, axis="x")
    axes.set(ylim=(0, axes.get_ylim()[1] * 1.15))  # room for the legend
    axes.legend(ncols=4, loc="upper center")


def _parts(states: StateBytes, activations: float) -> dict[str, float]:
    """The parts of a bar, from below, in megabytes."""
    parts = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "optimizer state": states.optimizer,
        "activations": activations,
    }
    return {name: size / MEGABYTE for name, size in parts.items()}


BENCHMARK = Benchmark(
    name="memory",
    help="Bytes of parameters, gradients, optimizer state and activations on each rank, against the paper.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
