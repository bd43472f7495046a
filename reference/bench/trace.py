"""`trace`: one training step of each wrapper as a picture and as Chrome traces, and how much communication it hides.

    python -m reference.bench trace --model 128x4 --world-size 2

The step is seen by torch's profiler and by the observed record (`traced_steps`). The two are compared: collectives,
their order and the times of their launches.

The overlap is the share of communication during which the rank computed. On CPU the profiler sees a collective on
gloo's thread and operators on the thread of the model.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.chrome_traces import Step, without_gaps
from reference.bench.contestants import Workload
from reference.bench.result import Column, Raw, Result
from reference.bench.traced_steps import file_name, measure_on_ranks
from reference.bench.training_options import (
    add_bucket_option,
    add_model_option,
    add_training_options,
    train_on_ranks,
    workload_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEGABYTE = 1e6
_PIXELS = 800  # of the picture; shorter pauses are not drawn


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_option(command, "256x4")
    add_training_options(command, samples=4)
    add_bucket_option(command)


def measure(options: Namespace) -> Raw:
    """Start the ranks and trace on them."""
    workload = workload_of(options, options.model, options.bucket_mb)
    folder = (options.out or Path("bench", BENCHMARK.name)).absolute()
    return train_on_ranks(options, measure_on_ranks, workload, str(folder))


def steps_of(raw: Raw) -> dict[str, list[Step]]:
    """The steps of every rank, for each training."""
    return {name: [Step.from_json(step) for step in every] for name, every in raw["steps"].items()}


def evaluate(raw: Raw) -> Result:
    """The table: communication of each training, and how much is hidden; the sentences: overlap and agreement.

    `profiler` and `record` are the numbers of collectives that each saw, `running` is how long at least one ran,
    `waited` how long the program waited by the record, and `differ` by how much the two disagree about a launch.
    """
    workload, found = Workload(**raw["workload"]), steps_of(raw)
    return Result(
        name=BENCHMARK.name,
        title=f"One step of the transformer {workload.model} on {raw['world_size']} ranks ({raw['backend']}, "
        f"{raw['device']}), {workload.samples} x {workload.words} tokens per rank; collectives seen by "
        "the profiler and by the record",
        columns=[
            Column("training"),
            Column("rank"),
            Column("profiler"),
            Column("record"),
            Column("passed", "MB"),
            Column("step", "ms"),
            Column("running", "ms"),
            Column("hidden", "ms"),
            Column("overlap", "%"),
            Column("waited", "ms"),
            Column("differ", "ms"),
        ],
        rows=[_row(name, rank, step) for name, every in found.items() for rank, step in enumerate(every)],
        sentences=[_overlaps(found), _agreement(raw, found), _GPU[raw["device"]]],
        raw=raw,
    )


def _row(name: str, rank: int, step: Step) -> list[Any]:
    return [
        name,
        rank,
        len(step.profiled),
        len(step.observed),
        step.bytes / _MEGABYTE,
        step.milliseconds,
        step.communication,
        step.hidden,
        step.overlap_percent,
        step.waited,
        median(step.launch_differences) if step.launch_differences else None,
    ]


def overlap_of(every: Sequence[Step]) -> float | None:
    """The share of the communication of all ranks that was hidden, in percent."""
    communication = sum(step.communication for step in every)
    return 100 * sum(step.hidden for step in every) / communication if communication else None


def _overlaps(found: Mapping[str, Sequence[Step]]) -> str:
    parts = [
        f"{overlap:.0f}% with {name}" for name, every in found.items() if (overlap := overlap_of(every)) is not None
    ]
    if not parts:
        return "No collective was seen to run, so there is no overlap."
    return f"While collectives run, ranks compute during this share of the time: {', '.join(parts)}."


def _agreement(raw: Raw, found: Mapping[str, Sequence[Step]]) -> str:
    """Whether profiler and record agree; on a single rank about launches alone, because NCCL runs nothing there."""
    steps = [step for every in found.values() for step in every]
    differences = [difference for step in steps for difference in step.launch_differences]
    is_alone = raw["world_size"] == 1
    wrong = [name for name, every in found.items() if not all(_agrees(step, is_alone=is_alone) for step in every)]
    if wrong:
        return f"The profiler and the observed record disagree about the collectives of {', '.join(wrong)}."
    if not differences:
        return "Neither the profiler nor the observed record saw a collective."
    return (
        f"The profiler and the observed record saw the same {sum(len(step.observed) for step in steps)} collectives in "
        f"the same order; their launches differ by {median(differences):.2f} ms in the median and "
        f"{max(differences):.2f} ms at most."
    )


def _agrees(step: Step, *, is_alone: bool) -> bool:
    return step.launches_agree if is_alone else step.agree


_GPU = {
    "cpu": "On a GPU, kernels of NCCL would run beside the model's, and overlap would cost the model few cores.",
    "cuda": "Computation is the GPU's kernels. Communication is kernels too with nccl, and threads of the host with "
    "gloo. The record sees launches and waits of the program.",
}


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """One picture for each training: ranks by rows, with phases, operators and collectives as bars."""
    return {file_name(name): _draw(name, every) for name, every in steps_of(raw).items()}


def _draw(name: str, every: Sequence[Step]) -> "Figure":
    overlap = overlap_of(every)
    title = f"One step with {name}" + ("" if overlap is None else f": {overlap:.0f}% of communication is hidden")
    x = "time since the first rank began (ms)"
    picture, axes = pictures.figure(title, x=x, y="", inches=(8.0, 1.6 + 1.3 * len(every)))
    for rank, step in enumerate(every):
        _draw_rank(axes, rank, step)
    rows = [(2 * rank + place, f"rank {rank}: {row}") for rank in range(len(every)) for place, row in enumerate(_ROWS)]
    axes.set_yticks([place for place, _ in rows], [label for _, label in rows])
    axes.set(ylim=(2 * len(every) - 0.5, -0.5), xlim=(0, None))
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    picture.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4)
    return picture


_ROWS = ("computes", "communicates")
_PHASES = {"forward": "#e8eef6", "backward": "#d3dfee", "exchange": "#f3e3d6", "optimizer": "#e2efe6"}


def _draw_rank(axes: "Axes", rank: int, step: Step) -> None:
    computes, communicates = 2 * rank, 2 * rank + 1
    for phase in step.phases:
        axes.broken_barh(
            [(phase.start, phase.end - phase.start)],
            (computes - 0.45, 1.9),
            color=_PHASES[phase.name],
            label=phase.name,
            zorder=0,
        )
    pixel = step.milliseconds / _PIXELS
    axes.broken_barh(
        _bars(without_gaps(step.computed, pixel)), (computes - 0.3, 0.6), color=pictures.COLOURS[0], label="operators"
    )
    seen = [span.interval for span in step.profiled]
    axes.broken_barh(
        _bars(without_gaps(seen, pixel)),
        (communicates - 0.3, 0.45),
        color=pictures.COLOURS[1],
        label="collectives (profiler)",
        alpha=0.8,
    )
    axes.broken_barh(_bars(step.waits), (communicates + 0.2, 0.15), color="#222222", label="waits (record)")
    launches = [span.start for span in step.observed]
    axes.plot(launches, [communicates - 0.36] * len(launches), "|", color="#222222", label="launches (record)")


def _bars(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(start, end - start) for start, end in intervals]


BENCHMARK = Benchmark(
    name="trace",
    help="One step of each wrapper as a picture and as Chrome traces; overlap of communication in percent.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
