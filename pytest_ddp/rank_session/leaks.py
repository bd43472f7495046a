"""What a test leaves behind on its rank: it is found, restored if possible, and reported.

A `Snapshot` is taken before a test's own fixtures are set up, and restored after they are torn down. The table `KINDS`
at the end lists what it holds. To add a kind of leak, write a function that reads the state and one that restores it,
and add a line to `KINDS` and a test to `tests/plugin/rank_session/test_clean_state.py`.
"""

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
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

_IGNORED_VARIABLES = (b"PYTEST_CURRENT_TEST", *COMPILER_VARIABLES)
_CUDA_BYTES = 2**20  # libraries keep smaller workspaces on the device; a tensor left behind is usually larger
_ENDING_SECONDS = 1.0  # for threads and processes that were told to end and not waited for, such as executors


@dataclass(frozen=True)
class Leak:
    """Something that a test left behind, in words; `lasting` if it could not be restored."""

    what: str
    lasting: bool = False


@dataclass(frozen=True)
class LeakKind:
    """A kind of state that a test may change but must not leave changed.

    Attributes:
        read: returns the state.
        restore: called with an earlier state; restores it and yields what was different.
    """

    read: Callable[[], Any]
    restore: Callable[[Any], Iterable[Leak]]


@dataclass(frozen=True)
class Snapshot:
    """The state of this process, one value for each of `KINDS`."""

    states: tuple[Any, ...]

    @classmethod
    def take(cls) -> "Snapshot":
        """Read the state."""
        return cls(tuple(kind.read() for kind in KINDS))

    def restore(self) -> list[Leak]:
        """Restore this state; return everything that was different."""
        return [leak for kind, state in zip(KINDS, self.states, strict=True) for leak in kind.restore(state)]


def _setting(name: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> LeakKind:
    """Return the kind for a value that two functions read and write."""

    def restore(before: Any) -> Iterator[Leak]:
        now = read()
        if now != before:
            yield Leak(f"{name} changed from {before} to {now}", lasting=not _succeeds(write, before))

    return LeakKind(read, restore)


def _succeeds(write: Callable[[Any], Any], value: Any) -> bool:
    try:
        write(value)
    except (OSError, TypeError):  # the working directory does not exist, now or before the test
        return False
    return True


def _default_device() -> torch.device:
    return torch.empty(0).device  # as torch.get_default_device(), but faster


def _set_default_device(device: torch.device) -> None:
    # None is the CPU too. With any device, torch intercepts every call of its functions, which takes time.
    torch.set_default_device(None if device.type == "cpu" else device)


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  compared as text
    except FileNotFoundError:
        return None


def _environment() -> dict[bytes, bytes]:
    # A copy by public means would decode and encode all names and values.
    variables: dict[bytes, bytes] = os.environb._data.copy()  # type: ignore[attr-defined]  # noqa: SLF001
    for name in _IGNORED_VARIABLES:
        variables.pop(name, None)
    return variables


def _restore_environment(before: dict[bytes, bytes]) -> Iterator[Leak]:
    now = _environment()
    if now == before:
        return
    changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    for name in changed:
        os.environb.pop(name, None)
        if name in before:
            os.environb[name] = before[name]
    yield Leak(f"environment changed: {', '.join(map(os.fsdecode, changed))}")


def _groups() -> dict[str, str]:
    """Return all groups but the default one, by name, each with its origin: `new_group`, or a dimension of a mesh."""
    groups = {name: group.group_desc for group, name in group_names().items() if group is not dist.group.WORLD}
    return {name: "new_group" if origin in {"", "undefined"} else origin for name, origin in groups.items()}


def _find_groups(before: dict[str, str]) -> Iterator[Leak]:
    """Find new groups. They need not be destroyed here: that happens when the rank leaves the test's own group."""
    new = [origin for name, origin in _groups().items() if name not in before]
    if new:
        yield Leak(f"{_count(len(new), 'process group')} not destroyed ({', '.join(sorted(set(new)))})")


def _threads() -> frozenset[threading.Thread]:
    """Return the threads that Python code started; not those that C++ started and that have called Python."""
    dummy = threading._DummyThread  # noqa: SLF001  no public name
    return frozenset(t for t in threading.enumerate() if not isinstance(t, dummy)) - compiler_threads()


def _await_threads(before: frozenset[threading.Thread]) -> Iterator[Leak]:
    new, until = _threads() - before, time.monotonic() + _ENDING_SECONDS
    for thread in new:
        thread.join(max(0.0, until - time.monotonic()))
    names = sorted(thread.name for thread in new if thread.is_alive())
    if names:
        yield Leak(f"{_count(len(names), 'thread')} still running: {', '.join(names)}", lasting=True)


def _children() -> frozenset[int]:
    """Return this process's children, except for the shared ones: compilers, and the helpers of multiprocessing."""
    if not _has_children():
        return frozenset()
    if sys.platform == "linux":
        lists = map(_read_if_there, Path("/proc/self/task").glob("*/children"))
        pids = {int(pid) for children in lists for pid in children.split()}
    else:
        import psutil  # noqa: PLC0415  slower

        pids = {child.pid for child in psutil.Process().children()}
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001  no public names
    server: Any = forkserver._forkserver  # noqa: SLF001
    helpers = {tracker._pid, server._forkserver_pid}  # noqa: SLF001
    return frozenset(pids - helpers - compiler_processes())


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _read_if_there(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""


def _end_children(before: frozenset[int]) -> Iterator[Leak]:
    new = _children() - before
    if not new:
        return
    import psutil  # noqa: PLC0415  slow, and most tests start no process

    _, running = psutil.wait_procs((p for p in psutil.Process().children() if p.pid in new), _ENDING_SECONDS)
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(running)
    if running:
        yield Leak(f"{_count(len(running), 'child process', 'child processes')} still running: ended")


def _cuda_bytes() -> int:
    """Return the memory that is allocated on this rank's device, without the workspaces of cuBLAS.

    torch allocates those, 64 MiB on an H100, for the first product of matrices, and again after they were freed.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return 0
    clear_cublas_workspaces()
    return torch.cuda.memory_allocated()


def _find_cuda_memory(before: int) -> Iterator[Leak]:
    if _cuda_bytes() - before <= _CUDA_BYTES:
        return
    gc.collect()
    grown = _cuda_bytes() - before
    if grown > _CUDA_BYTES:
        yield Leak(f"{grown / 2**20:.1f} MiB of CUDA memory still allocated", lasting=True)


def _count(number: int, one: str, many: str = "") -> str:
    return f"1 {one}" if number == 1 else f"{number} {many or one + 's'}"


KINDS = (
    _setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _setting("default device", _default_device, _set_default_device),
    _setting("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _setting("number of threads", torch.get_num_threads, torch.set_num_threads),
    _setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _setting(
        "deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    _setting("working directory", _working_directory, os.chdir),
    LeakKind(_environment, _restore_environment),
    LeakKind(_groups, _find_groups),
    LeakKind(_threads, _await_threads),
    LeakKind(_children, _end_children),
    LeakKind(_cuda_bytes, _find_cuda_memory),
    LeakKind(lambda: None, lambda _: map(Leak, current.unmatched_operations())),
)
