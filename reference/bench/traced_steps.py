"""One training step of each wrapper, seen twice at the same time: by torch's profiler, and by the observed record.

Each training takes two steps, then one under the profiler in a process group that records every operation. Rank 0
writes both traces with all ranks: trace-NAME.profiler.json and trace-NAME.observed.json. https://ui.perfetto.dev and
chrome://tracing open them.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from reference.bench.chrome_traces import CLOCK, PHASE, Step, TraceEvent, mark_of, of_rank, read_step
from reference.bench.contestants import WRAPPERS, Contestant, Workload, batch, contestant, submitted_names
from reference.bench.observed import observed_group
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.bench.strategies import strategies
from reference.bench.submission import kind
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from pytest_ddp.observed.inspection.collectives import Collectives

_SHARDED = ("zero1", "fsdp")  # beside the wrappers
_WARM_UP = 2


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
    """The events of the profiler, those of the record, and the monotonic time of the span `clock` in microseconds.

    The ranks start together once the profiler runs: starting it takes each rank another time.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if tokens.is_cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:  # else torch 2.11 warns of later cycles
        dist.barrier()
        record.clear()
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
        merged += of_rank(events, rank, clock - mark_of(events))
    return merged


def _write_observed(path: Path, every: Sequence[list[TraceEvent]]) -> None:
    """The record's traces of all ranks, with arrows between the ranks of each collective."""
    from pytest_ddp.observed.inspection.chrome_trace import merge_traces  # noqa: PLC0415  # needed here only

    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder, f"{rank}.json") for rank in range(len(every))]
        for part, events in zip(parts, every, strict=True):
            _write(part, events)
        merge_traces(parts, path)
