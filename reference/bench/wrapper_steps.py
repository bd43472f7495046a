"""The training steps of each wrapper: their times, their communication and their memory, measured on ranks.

Communication is read from a few steps under torch's profiler: how long at least one collective runs, and how long one
runs while the rank computes nothing (*exposed*). The profiler makes steps longer, collectives too. So only the shares
of a profiled step count, and the same shares of a step without the profiler are reported. Hidden communication is not
free on CPUs: its threads use the cores that the model needs. So a wrapper can add more time than it exposes.

Memory is the most that tensors hold at once from the model to the end of the second step.

All models must fit into one time. So a step of each shows first how long the model would take, with as few rounds as
mean something. The largest are left out if not all of them fit. The others share what is left for further rounds.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import median

import torch.distributed as dist
from torch import Tensor

from reference.bench.contestants import (
    NONE,
    WRAPPERS,
    Contestant,
    Workload,
    batch,
    contestant,
    size_of,
    submitted_names,
)
from reference.bench.method import Spread, differences, spread
from reference.bench.profiling import peak_bytes, profile_intervals
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.bench.step_times import FEWEST_ROUNDS, slowest, time_steps
from reference.bench.transformer_costs import parameters
from reference.communication.process_group import current_device

NAMES = (NONE, *WRAPPERS)
_PROFILED_STEPS = 3
_MEMORY_STEPS = 2  # wrappers with buckets hold them from the first step on
_WATCHED = 2.0  # a step whose memory is watched takes about so many times as long
_EXCHANGING = 1.5  # and so does one with an exchange


# On the ranks


def measure_on_ranks(workloads: Sequence[Workload], rounds: int, warm_up: int, seconds: float) -> Raw:
    """Measure each workload: memory, then times in interleaved rounds, then communication under the profiler.

    Args:
        workloads: one for each size of the model.
        rounds: steps of each wrapper, at most.
        warm_up: steps before those.
        seconds: time for all workloads. The smallest one is measured however long it takes.
    """
    began = time.perf_counter()
    profile_intervals(lambda: None)  # the first profile of a process takes seconds
    ordered = sorted(workloads, key=lambda workload: _parameters(workload.model))
    steps = min(rounds, FEWEST_ROUNDS) + warm_up + 1
    needed = [seconds_needed(_step_seconds(workload), _names(workload), steps) for workload in ordered]
    remaining = seconds - slowest(time.perf_counter() - began)
    count = fitting(needed, remaining)
    models = []
    for number, workload in enumerate(ordered[:count]):
        left = seconds - slowest(time.perf_counter() - began)
        its_part = min(left / (count - number), left - sum(needed[number + 1 : count]))
        models.append(_measure_one(workload, rounds, warm_up, its_part))
    return {
        "backend": dist.get_backend(),
        "device": current_device().type,
        "world_size": dist.get_world_size(),
        "models": models,
        "left_out": [
            {"model": workload.model, "needed": needed[number], "left": remaining - sum(needed[:number])}
            for number, workload in enumerate(ordered)
            if number >= count
        ],
    }


def fitting(needed: Sequence[float], seconds: float) -> int:
    """How many workloads fit into a time, one after the other; at least one.

    Args:
        needed: seconds of each.
        seconds: for all.
    """
    totals = list(accumulate(needed))
    return max(1, sum(total <= seconds for total in totals))


def seconds_needed(step: float, names: Sequence[str], timed_steps: int) -> float:
    """About how long a workload takes, if its step without exchange takes `step` seconds.

    Args:
        step: seconds.
        names: of the contestants.
        timed_steps: of each contestant.
    """
    return len(names) * step * _EXCHANGING * (_WATCHED * _MEMORY_STEPS + timed_steps + _PROFILED_STEPS)


def _step_seconds(workload: Workload) -> float:
    """The seconds of a step without exchange on the slowest rank; the second one, because the first one warms up."""
    one, tokens = contestant(NONE, workload), batch(workload)
    one.step(tokens)
    began = time.perf_counter()
    one.step(tokens)
    return slowest(time.perf_counter() - began)


def _measure_one(workload: Workload, rounds: int, warm_up: int, seconds: float) -> Raw:
    began = time.perf_counter()
    tokens, names = batch(workload), _names(workload)
    peaks = {name: _peak(name, workload, tokens) for name in names}
    spent = slowest(time.perf_counter() - began)
    profiling = spent / _WATCHED / _MEMORY_STEPS * _PROFILED_STEPS
    contestants = {name: contestant(name, workload) for name in names}
    return {
        "workload": asdict(workload),
        "parameters": _parameters(workload.model),
        "peak_bytes": peaks,
        "seconds": time_steps(contestants, tokens, rounds, warm_up, seconds - spent - profiling),
        "profiled": {name: profile_steps(one, tokens) for name, one in contestants.items()},
    }


def _names(workload: Workload) -> tuple[str, ...]:
    return (*NAMES, *submitted_names(workload))


def _parameters(model: str) -> int:
    return parameters(*size_of(model))


def _peak(name: str, workload: Workload, tokens: Tensor) -> int:
    def train() -> None:
        one = contestant(name, workload)
        for _ in range(_MEMORY_STEPS):
            one.step(tokens)

    return max(gather(peak_bytes(train)))


def profile_steps(one: Contestant, tokens: Tensor) -> list[dict[str, float]]:
    """For each rank and profiled step: seconds of the step, of communication, and of exposed communication."""
    mine = []
    for _ in range(_PROFILED_STEPS):
        found = profile_intervals(lambda: one.step(tokens))
        mine.append(
            {"step": found.seconds, "communication": found.communication_seconds, "exposed": found.exposed_seconds}
        )
    return [step for rank in gather(mine) for step in rank]


# From the raw numbers


def step_spread(model: Raw, name: str) -> Spread:
    """Seconds of a wrapper's step on this model."""
    return spread(model["seconds"][name])


def added(model: Raw, name: str) -> Spread:
    """Seconds that a wrapper adds to the step without an exchange, within each round."""
    return differences(model["seconds"][name], model["seconds"][NONE])


def profiled_step(model: Raw, name: str) -> float:
    """The median seconds of a step under the profiler, over ranks and profiled steps."""
    return float(median(step["step"] for step in model["profiled"][name]))


def share(model: Raw, name: str, what: str) -> float:
    """The median share of a profiled step that `communication` or `exposed` communication takes."""
    return float(median(step[what] / step["step"] for step in model["profiled"][name]))


def seconds_of(model: Raw, name: str, what: str) -> float:
    """The same share of the median step without the profiler, in seconds."""
    return share(model, name, what) * step_spread(model, name).median


def hidden_share(model: Raw, name: str) -> float | None:
    """The median share of communication that runs while the rank computes; None without communication."""
    shares = [1 - one["exposed"] / one["communication"] for one in model["profiled"][name] if one["communication"]]
    return median(shares) if shares else None
