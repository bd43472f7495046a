"""How many bytes tensors hold at given moments; nothing is sampled.

On CUDA, the caching allocator keeps the count. On CPU, each operator's results are remembered, without keeping them
alive, and those that still live are added up. The profiler's count would not do: a thread of gloo may be the last one
to release a tensor, and the profiler does not see what that thread releases.

What a backend holds outside of tensors is not counted, nor, on CPU, what an operator needs only while it runs.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_POLLS, _POLLS_ASLEEP, _POLL_SECONDS = 1000, 3, 0.002


@dataclass(frozen=True)
class Moment:
    """The bytes that tensors hold at a moment.

    Attributes:
        name: of the moment.
        bytes: held then, above what was held when watching began.
        peak: the most that was held since the moment before.
    """

    name: str
    bytes: int
    peak: int


class Watch(ABC):
    """Counts bytes from now on.

    Attributes:
        moments: those that were marked, in order.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def mark(self, name: str) -> None:
        """Note what is held now, and the peak since the last mark."""
        gc.collect()
        _wait_for_gloo()
        held, peak = self._count()
        self.moments.append(Moment(name, held, max(held, peak)))

    @abstractmethod
    def _count(self) -> tuple[int, int]:
        """What is held now and the peak since the last count."""


@contextmanager
def watch_allocations(device: torch.device) -> Iterator[Watch]:
    """Watch the tensors that this thread makes on a device while the block runs."""
    if device.type == "cuda":
        yield _CudaWatch(device)
        return
    operators = _Operators()
    with operators:
        yield _CpuWatch(operators)


class _CudaWatch(Watch):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        gc.collect()  # else what is collected later, such as a training in a cycle, would count as released
        self._device, self._before = device, torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)

    def _count(self) -> tuple[int, int]:
        held, peak = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return held - self._before, peak - self._before


class _CpuWatch(Watch):
    def __init__(self, operators: "_Operators") -> None:
        super().__init__()
        self._operators = operators

    def _count(self) -> tuple[int, int]:
        held, peak = self._operators.held(), self._operators.peak
        self._operators.peak = held
        return held, peak


class _Operators(TorchDispatchMode):
    """Remembers the memory of each operator's results, in forward, backward and the optimizer's step.

    Attributes:
        peak: the most that was held after an operator.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.peak = 0
        self._memory: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        older = _memory_of((args, kwargs))  # of views, and of results that are written into an argument
        made = {key: storage for key, storage in _memory_of(result).items() if key not in older}
        if made:
            weak: Callable[[torch.UntypedStorage], StorageWeakRef] = StorageWeakRef
            self._memory |= {key: weak(storage) for key, storage in made.items()}
            self.peak = max(self.peak, self.held())
        return result

    def held(self) -> int:
        """The bytes of the memory that still lives."""
        self._memory = {key: memory for key, memory in self._memory.items() if not memory.expired()}  # type: ignore[no-untyped-call]  # torch's
        living = (torch.UntypedStorage._new_with_weak_ptr(memory.cdata) for memory in self._memory.values())  # noqa: SLF001
        return sum(storage.nbytes() for storage in living if storage is not None)


def _memory_of(values: Any) -> dict[int, torch.UntypedStorage]:
    """The memory of all tensors on the CPU in nested containers, by its identity."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor) and value.device.type == "cpu")
    return {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}  # noqa: SLF001


def _wait_for_gloo() -> None:
    """Wait until no thread of gloo runs, as the kernel shows several times in a row; at most a few seconds.

    gloo's threads hold the tensors of a collective a moment longer than the program that waited for it.
    """
    asleep = 0
    for _ in range(_POLLS):
        asleep = 0 if "R" in map(_state, _gloo_threads()) else asleep + 1
        if asleep == _POLLS_ASLEEP:
            return
        sleep(_POLL_SECONDS)


def _gloo_threads() -> list[Path]:
    tasks = Path("/proc/self/task")  # on Linux only
    return [task for task in tasks.glob("*") if "gloo" in (task / "comm").read_text(encoding="utf-8")]


def _state(task: Path) -> str:
    """R: runs or wants to run. S: sleeps."""
    return (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
