"""What torch's profiler saw in a step: when collectives ran, when the model was computed, and the peak of memory."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from reference.bench.intervals import Interval, exposed, total, union
from reference.communication.process_group import current_device

_COLLECTIVES = ("gloo:", "nccl:", "nccldevkernel", "ncclkernel")
_LAUNCHES = ("c10d::", "record_param_comms")  # on the thread that computes: they only start a collective


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
    """Run a function under the profiler; call on every rank if it communicates."""
    on_cuda = current_device().type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        function()
        seconds = time.perf_counter() - began
    return intervals_of(profiler.events(), seconds, on_cuda=on_cuda)


def intervals_of(events: Any, seconds: float, *, on_cuda: bool) -> Profile:
    """Sort the profiler's events into communication and computation.

    On CUDA, computation is what the GPU's kernels did, and NCCL's kernels are communication. gloo communicates in
    threads of its own on any device.
    """
    communication, computation = [], []
    for event in events:
        name = event.name.lower()
        interval = (event.time_range.start / 1e6, event.time_range.end / 1e6)
        on_gpu = event.device_type == DeviceType.CUDA
        if name.startswith(_COLLECTIVES):
            if on_gpu or not name.startswith("nccl"):  # on the CPU, NCCL is only launched
                communication.append(interval)
        elif on_gpu == on_cuda and not name.startswith(_LAUNCHES):
            computation.append(interval)
    return Profile(seconds, sorted(communication), union(computation))


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that tensors on this rank's device hold at once while the function runs, beyond those before.

    The allocator counts them: on CUDA by itself, on CPU for the profiler. Memory of the backend is not in it.
    """
    gc.collect()
    if current_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    found = [event.typed[1] for event in _flat(_tree(profiler)) if event.name == "[memory]"]
    if not found:
        return 0
    before = found[0].total_allocated - found[0].alloc_size
    return int(max(memory.total_allocated for memory in found) - before)


def _tree(profiler: profile) -> Any:
    kineto: Any = profiler.profiler
    return kineto.kineto_results.experimental_event_tree()


def _flat(tree: list[Any]) -> Iterator[Any]:
    for event in tree:
        yield event
        yield from _flat(event.children)
