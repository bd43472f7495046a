"""`trace`: one training step of each wrapper as a picture and as Chrome traces, and how much communication it hides.

    python -m reference.bench trace --model 128x4 --world-size 2

Each training takes two steps, then one under torch's profiler in a process group that records every operation. So the
same step is seen twice, and the two are compared: collectives, their order and the times of their launches.

The overlap is the share of communication during which the rank computed. On CPU the profiler sees a collective on
gloo's thread and operators on the thread of the model.

Files: trace-NAME.profiler.json (torch's profiler) and trace-NAME.observed.json (the record) have all ranks. https://ui.perfetto.dev
and chrome://tracing open both.
"""

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.chrome_traces import CLOCK, PHASE, Step, TraceEvent, of_rank, read_step, without_gaps
from reference.bench.contestants import WRAPPERS, Contestant, Workload, batch, contestant, size_of, submitted_names
from reference.bench.observed import observed_group
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.bench.strategies import strategies
from reference.bench.submission import kind, submission_path
from reference.communication.launch import in_job
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_ddp.observed.inspection.collectives import Collectives

_SHARDED = ("zero1", "fsdp")  # beside the wrappers
_WARM_UP = 2
_MEGABYTE = 1e6
_PIXELS = 1600  # shorter pauses are not drawn


# On the ranks


def measure_on_ranks(workload: Workload, folder: str) -> Raw:
    """Trace one step of each training, and write the traces of all ranks into a folder."""
    tokens = batch(workload)
    with observed_group() as record:
        makers = _makers(workload)
        steps = {name: trace_training(make, tokens, record, Path(folder), name) for name, make in makers.items()}
    return {
        "workload": asdict(workload),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": current_device().type,
        "steps": {name: [asdict(step) for step in every] for name, every in steps.items()},
    }


def _makers(workload: Workload) -> dict[str, Callable[[], Contestant]]:
    """The trainings by name: every wrapper, and those that shard."""
    sharded = {name: make for name, make in strategies(workload).items() if kind(name) in _SHARDED}
    wrapped = (*WRAPPERS, *submitted_names(workload))
    return {name: lambda name=name: contestant(name, workload) for name in wrapped} | sharded


def trace_training(
    make: Callable[[], Contestant], tokens: Tensor, record: "Collectives", folder: Path, name: str
) -> list[Step]:
    """One step of a training on every rank; rank 0 writes the traces of all ranks into the folder."""
    training = make()
    for _ in range(_WARM_UP):
        training.step(tokens)
    profiled, observed, clock = trace_step(training, tokens, record)
    every = gather((profiled, observed, clock))
    if dist.get_rank() == 0:
        _write(folder / f"trace-{file_name(name)}.profiler.json", _merged(every))
        _write_observed(folder / f"trace-{file_name(name)}.observed.json", [made for _, made, _ in every])
    steps = [read_step(*one) for one in every]
    first = min(step.phases[0].start for step in steps)
    return [step.shifted(-first) for step in steps]


def trace_step(
    training: Contestant, tokens: Tensor, record: "Collectives"
) -> tuple[list[TraceEvent], list[TraceEvent], float]:
    """The events of the profiler, those of the record, and the monotonic time of the span `clock` in microseconds."""
    dist.barrier()
    record.clear()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if tokens.is_cuda else [])]
    with profile(activities=activities) as profiler:
        clock = monotonic_ns() / 1e3
        with record_function(CLOCK):
            pass
        _step_in_phases(training, tokens)
    with tempfile.TemporaryDirectory() as folder:
        seen, made = Path(folder, "profiler.json"), Path(folder, "observed.json")
        profiler.export_chrome_trace(str(seen))
        record.export_trace(made)
        return _read(seen), _read(made), clock


def _step_in_phases(training: Contestant, tokens: Tensor) -> None:
    with record_function(PHASE + "forward"):
        training.optimizer.zero_grad()
        loss = training.loss(tokens)
    with record_function(PHASE + "backward"):
        torch.autograd.backward(loss)
    with record_function(PHASE + "exchange"):
        training.finish()
    with record_function(PHASE + "optimizer"):
        training.optimizer.step()
        if tokens.is_cuda:
            torch.cuda.synchronize()


def file_name(name: str) -> str:
    """A training's name as it stands in the names of files."""
    return name.replace(" (", "-").replace(")", "")


def _read(path: Path) -> list[TraceEvent]:
    events: list[TraceEvent] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def _write(path: Path, events: Sequence[TraceEvent]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")), encoding="utf-8"
    )


def _merged(every: Sequence[tuple[list[TraceEvent], list[TraceEvent], float]]) -> list[TraceEvent]:
    """The profiler's traces of all ranks, on the clock of the record."""
    merged: list[TraceEvent] = []
    for rank, (events, _, clock) in enumerate(every):
        [mark] = [event["ts"] for event in events if event.get("name") == CLOCK]
        merged += of_rank(events, rank, clock - mark)
    return merged


def _write_observed(path: Path, every: Sequence[list[TraceEvent]]) -> None:
    """The record's traces of all ranks, with arrows between the ranks of each collective."""
    from pytest_ddp.observed.inspection.chrome_trace import merge_traces  # noqa: PLC0415  # needed here only

    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder, f"{rank}.json") for rank in range(len(every))]
        for part, events in zip(parts, every, strict=True):
            _write(part, events)
        merge_traces(parts, path)


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--model", default="256x4", help="a transformer: tiny, small, ..., or WIDTHxLAYERS")
    command.add_argument("--samples", type=int, default=4, help="sequences on each rank")
    command.add_argument("--words", type=int, default=64, help="tokens in each sequence")
    command.add_argument("--bucket-mb", type=float, default=1.0, help="largest size of a bucket, in 1024 * 1024 bytes")
    command.add_argument("--world-size", type=int, default=2, help="ranks to start")
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument(
        "--submission", type=submission_path, metavar="PATH", help="trace a submission's wrappers beside the references"
    )


def measure(options: Namespace) -> Raw:
    """Start the ranks and trace on them."""
    size_of(options.model)  # a wrong name is refused before ranks are started
    workload = Workload(options.model, options.samples, options.words, options.bucket_mb, options.submission)
    folder = str((options.out or Path("bench", BENCHMARK.name)).absolute())
    ranks = None if in_job() else options.world_size
    found: Raw = on_ranks(measure_on_ranks, ranks, workload, folder, backend=options.backend)
    return found


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
        sentences=[_overlaps(found), _agreement(found), _GPU[raw["device"]]],
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
    return f"Of the time in which collectives run, ranks compute in {', '.join(parts)}."


def _agreement(found: Mapping[str, Sequence[Step]]) -> str:
    steps = [step for every in found.values() for step in every]
    differences = [difference for step in steps for difference in step.launch_differences]
    wrong = [name for name, every in found.items() if not all(step.agree for step in every)]
    if wrong:
        return f"The profiler and the observed record disagree about the collectives of {', '.join(wrong)}."
    return (
        f"The profiler and the observed record saw the same {sum(len(step.observed) for step in steps)} collectives in "
        f"the same order; their launches differ by {median(differences):.2f} ms in the median and "
        f"{max(differences):.2f} ms at most."
    )


_GPU = {
    "cpu": "On a GPU, kernels of NCCL would run beside the model's, and overlap would cost the model few cores.",
    "cuda": "Communication and computation are the GPU's kernels; the record sees launches and waits of the program.",
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
