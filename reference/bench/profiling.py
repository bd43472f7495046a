"""What torch's profiler saw in a step: when collectives ran, when the model was computed, and the peak of memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from reference.bench.allocations import watch_allocations
from reference.bench.intervals import Interval, exposed, total, union
from reference.communication.process_group import current_device

_MARK = "measured from here"
_COLLECTIVES = ("gloo:", "nccl:", "nccldevkernel", "ncclkernel")
_COPIES = ("memcpy", "memset")  # of the GPU: no computation, and gloo's are a part of its collectives
_CALLERS = ("autograd::", "torch::autograd::", "c10d::", "record_param_comms")  # they call others, or wait


@dataclass(frozen=True)
class Profile:
    """When one function communicated and computed, in seconds since the profiler started.

    Attributes:
        seconds: how long the function took.
        communication: when each collective ran, from the backend's thread or kernel; it also waits for other ranks.
        computation: when operators or, on CUDA, kernels ran; disjoint, in order.
    """

    seconds: float
    communication: list[Interval]
    computation: list[Interval]

    @property
    def communication_seconds(self) -> float:
        """How long at least one collective ran."""
        return total(self.communication)

    @property
    def exposed_seconds(self) -> float:
        """How long a collective ran while nothing was computed."""
        return exposed(self.communication, self.computation)


def profile_intervals(function: Callable[[], object]) -> Profile:
    """Run a function under the profiler. A collective.

    Starting the profiler takes each rank another time, seconds for the first one of a process. So the ranks start
    together after that, and what the profiler saw before does not count.
    """
    on_cuda = current_device().type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:  # else torch 2.11 warns of later cycles
        dist.barrier()
        with record_function(_MARK):
            began = time.perf_counter()
            function()
            seconds = time.perf_counter() - began
    return intervals_of(_from_the_mark(profiler.events()), seconds, on_cuda=on_cuda)


def _from_the_mark(events: Any) -> list[Any]:
    """The events that begin when the function begins, or later."""
    began = min(event.time_range.start for event in events if event.name == _MARK)
    return [event for event in events if event.time_range.start >= began]


def intervals_of(events: Any, seconds: float, *, on_cuda: bool) -> Profile:
    """Sort the profiler's events into communication and computation.

    On CUDA, computation is what the GPU's kernels did, and NCCL's kernels are communication. On CPU, computation is
    what operators did; autograd's nodes call operators, and hooks, which may wait for a collective. gloo communicates
    in threads of its own on any device. On CUDA, it also copies with the GPU, which is no computation.
    """
    communication, computation = [], []
    for event in events:
        name = event.name.lower()
        interval = (event.time_range.start / 1e6, event.time_range.end / 1e6)
        on_gpu = event.device_type == DeviceType.CUDA
        if on_gpu and event.is_user_annotation:  # the span of a step or a collective on the GPU's timeline, with gaps
            continue
        if name.startswith(_COLLECTIVES):
            if on_gpu or not name.startswith("nccl"):  # on the CPU, NCCL is only launched
                communication.append(interval)
        elif (on_gpu and not name.startswith(_COPIES)) if on_cuda else computes(name):
            computation.append(interval)
    return Profile(seconds, sorted(communication), union(computation))


def computes(operator: str) -> bool:
    """Whether an event on the CPU is an operator that computes, by its name."""
    return "::" in operator and not operator.startswith(_CALLERS)


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that tensors on this rank's device hold at once while the function runs, beyond those before.

    Memory of the backend is not in it.
    """
    with watch_allocations(current_device()) as watch:
        function()
        watch.mark("over")
    return watch.moments[-1].peak
