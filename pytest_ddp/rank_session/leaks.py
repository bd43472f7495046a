"""What a test leaves behind on its rank: found, put back where that is possible, and told.

A `Snapshot` is taken when the fixtures of wider scope are there, and compared when the test's own fixtures are gone.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.recording import current
from pytest_ddp.torch_internals import (
    COMPILER_VARIABLES,
    clear_cublas_workspaces,
    compiler_processes,
    compiler_threads,
    group_names,
)

_NOT_THE_TESTS = (b"PYTEST_CURRENT_TEST", *COMPILER_VARIABLES)
# Libraries keep small workspaces on the device for good; a tensor that a test forgot is seldom smaller than this.
_CUDA_BYTES = 2**20
# For a thread, or a process, that was told to end, and not waited for: a progress bar's, an executor's, a server.
_ENDING_SECONDS = 1.0
_LOOK_SECONDS = 0.01


def _default_device() -> torch.device:
    return torch.empty(0).device  # what `torch.get_default_device` says, in less time


def _set_default_device(device: torch.device) -> None:
    # None is the CPU too, and costs nothing: with a device, torch looks at every call of its functions.
    torch.set_default_device(None if device.type == "cpu" else device)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (_default_device, _set_default_device),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "working directory": (os.getcwd, os.chdir),
}


@dataclass(frozen=True)
class Leak:
    """One thing that a test left behind; `lasting` if it could not be put back."""

    what: str
    lasting: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The state of this process that a test may not change for the next one."""

    settings: dict[str, Any]
    environment: dict[bytes, bytes]
    groups: dict[str, str]
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    cuda_bytes: int

    @classmethod
    def take(cls) -> "Snapshot":
        """Look at this process."""
        return cls(
            settings={name: _read(read) for name, (read, _) in _SETTINGS.items()},
            environment=_environment(),
            groups=_groups(),
            threads=_threads(),
            children=_children(),
            cuda_bytes=_cuda_bytes(),
        )

    def put_back(self) -> list[Leak]:
        """Undo what has changed since; return everything that was found."""
        found = [*self._settings(), *self._environment(), *self._groups(), *self._threads(), *self._children()]
        return [*found, *self._cuda(), *map(Leak, current.unmatched_operations())]

    def _settings(self) -> Iterator[Leak]:
        for name, (read, write) in _SETTINGS.items():
            before, now = self.settings[name], _read(read)
            if now != before:
                yield Leak(f"{name} changed from {before} to {now}", lasting=not _write(write, before))

    def _environment(self) -> Iterator[Leak]:
        now = _environment()
        if now == self.environment:
            return
        changed = sorted(name for name in {*now, *self.environment} if now.get(name) != self.environment.get(name))
        for name in changed:
            os.environb.pop(name, None)
            if name in self.environment:
                os.environb[name] = self.environment[name]
        yield Leak(f"environment changed: {', '.join(map(os.fsdecode, changed))}")

    def _groups(self) -> Iterator[Leak]:
        """Process groups need no undoing: they are destroyed with the test's own group."""
        new = [made for name, made in _groups().items() if name not in self.groups]
        if new:
            yield Leak(f"{_count(len(new), 'process group')} not destroyed ({', '.join(sorted(set(new)))})")

    def _threads(self) -> Iterator[Leak]:
        new, end = _threads() - self.threads, time.monotonic() + _ENDING_SECONDS
        for thread in new:
            thread.join(max(0.0, end - time.monotonic()))
        names = sorted(thread.name for thread in new if thread.is_alive())
        if names:
            yield Leak(f"{_count(len(names), 'thread')} still running: {', '.join(names)}", lasting=True)

    def _children(self) -> Iterator[Leak]:
        new, until = _children() - self.children, time.monotonic() + _ENDING_SECONDS
        ended = [pid for pid in new if _end(pid, until)]
        if ended:
            yield Leak(f"{_count(len(ended), 'child process', 'child processes')} still running: ended")

    def _cuda(self) -> Iterator[Leak]:
        if _cuda_bytes() - self.cuda_bytes <= _CUDA_BYTES:
            return
        gc.collect()
        grown = _cuda_bytes() - self.cuda_bytes
        if grown > _CUDA_BYTES:
            yield Leak(f"{grown / 2**20:.1f} MiB of CUDA memory still allocated", lasting=True)


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:  # the working directory is gone
        return None


def _write(write: Callable[[Any], Any], value: Any) -> bool:
    try:
        write(value)
    except (OSError, TypeError):  # the working directory is gone, now or before the test
        return False
    return True


def _end(pid: int, until: float) -> bool:
    """End a child that does not end by itself until then; whether it was still running, not just not waited for."""
    try:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= until:
                break
            time.sleep(_LOOK_SECONDS)
        else:
            return False
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return False
    return True


def _environment() -> dict[bytes, bytes]:
    # A public copy would decode and encode every name and value.
    now: dict[bytes, bytes] = os.environb._data.copy()  # type: ignore[attr-defined]  # noqa: SLF001
    for name in _NOT_THE_TESTS:
        now.pop(name, None)
    return now


def _groups() -> dict[str, str]:
    """Return what made each group but the default one, by name: `new_group`, or a device mesh for a dimension of it."""
    return {name: _maker(group) for group, name in group_names().items() if group is not dist.group.WORLD}


def _maker(group: dist.ProcessGroup) -> str:
    return group.group_desc if group.group_desc not in {"", "undefined"} else "new_group"


def _threads() -> frozenset[threading.Thread]:
    """Return the threads that Python code has started; those of C++ that once ran Python are not the test's."""
    dummy = threading._DummyThread  # noqa: SLF001  no public name
    return frozenset(t for t in threading.enumerate() if not isinstance(t, dummy)) - compiler_threads()


def _children() -> frozenset[int]:
    """Return the processes that this one started, but for those shared by all: multiprocessing's helper, compilers."""
    if not _has_children():
        return frozenset()
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415  only where there is no quick way

        pids = {child.pid for child in psutil.Process().children()}
    else:
        # The main thread has the process's own id; a fork leaves its `native_id` that of the parent's.
        threads = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
        pids = {int(pid) for thread in threads for pid in _read_children(Path(f"/proc/self/task/{thread}"))}
    helper = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]  # noqa: SLF001  no public name
    return frozenset(pids - {helper} - compiler_processes())


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _read_children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # the thread has just ended
        return []


def _cuda_bytes() -> int:
    """Return what is allocated on this rank's device, without cuBLAS's workspaces.

    These are 64 MiB on an H100 from the first product of matrices and its gradient on, and nobody's leak: torch takes
    them when it needs them, as its own tests rely on.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return 0
    clear_cublas_workspaces()
    return torch.cuda.memory_allocated()


def _count(number: int, one: str, many: str = "") -> str:
    return f"1 {one}" if number == 1 else f"{number} {many or one + 's'}"
