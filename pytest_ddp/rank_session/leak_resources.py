"""Threads, processes, process groups, environment variables and memory that a test may leave behind."""

import contextlib
import gc
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.recording import current
from pytest_ddp.rank_session.leak_kind import Forgiven, Leak, LeakKind, count
from pytest_ddp.torch_internals import (
    COMPILER_VARIABLES,
    clear_cublas_workspaces,
    compiler_processes,
    compiler_threads,
    group_names,
)

_IGNORED_VARIABLES = (b"PYTEST_CURRENT_TEST", *COMPILER_VARIABLES)
_OWN_VARIABLES = (b"MASTER_ADDR", b"MASTER_PORT")  # a test that makes its own group may set them
_CUDA_BYTES = 2**20  # libraries keep smaller workspaces on the device; a tensor left behind is usually larger
_ENDING_SECONDS = 1.0  # for threads and processes that were told to end and not waited for, such as executors
# Modules whose threads serve the whole process and stay for good.
_SERVICES = (
    *("tqdm.", "wandb.", "tensorboard.", "tensorboardX.", "opentelemetry."),
    *("multiprocessing.queues", "multiprocessing.resource_sharer", "torch.multiprocessing.queue"),
)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def _environment() -> dict[bytes, bytes]:
    # A copy by public means would decode and encode all names and values.
    variables: dict[bytes, bytes] = os.environb._data.copy()  # type: ignore[attr-defined]  # noqa: SLF001
    for name in _IGNORED_VARIABLES:
        variables.pop(name, None)
    return variables


def _restore_environment(before: dict[bytes, bytes], forgiven: Forgiven) -> Iterator[Leak]:
    now = _environment()
    if now == before:
        return
    differ = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    changed = [name for name in differ if not forgiven(f"environment:{os.fsdecode(name)}")]
    for name in changed:
        os.environb.pop(name, None)
        if name in before:
            os.environb[name] = before[name]
    if names := [os.fsdecode(name) for name in changed if name not in _OWN_VARIABLES]:
        yield Leak(f"environment changed: {', '.join(names)}", f"environment:{names[0]}")


def _groups() -> dict[str, str]:
    """Return all groups but the default one, by name, each with its origin: `new_group`, or a dimension of a mesh."""
    groups = {name: group.group_desc for group, name in group_names().items() if group is not dist.group.WORLD}
    return {name: "new_group" if origin in {"", "undefined"} else origin for name, origin in groups.items()}


def _find_groups(before: dict[str, str], forgiven: Forgiven) -> Iterator[Leak]:
    """Find new groups. They need not be destroyed here: that happens when the rank leaves the test's own group."""
    new = [origin for name, origin in _groups().items() if name not in before and not forgiven(f"group:{origin}")]
    if new:
        origins = ", ".join(sorted(set(new)))
        yield Leak(f"{count(len(new), 'process group')} not destroyed ({origins})", f"group:{new[0]}")


def _threads() -> frozenset[threading.Thread]:
    """Return the threads that Python code started, without threads that stay for good.

    Left out are threads that C++ started and that have called Python, threads of the compiler, and service threads of
    libraries.
    """
    dummy = threading._DummyThread  # noqa: SLF001  no public name
    found = (t for t in threading.enumerate() if not isinstance(t, dummy) and not _origin(t).startswith(_SERVICES))
    return frozenset(found) - compiler_threads()


def _origin(thread: threading.Thread) -> str:
    """Return the module of the function that the thread runs, or of the thread's class."""
    target = getattr(thread, "_target", None)
    origin = target if type(thread).__module__ == "threading" and target is not None else type(thread)
    return getattr(getattr(origin, "func", origin), "__module__", None) or ""


def _await_threads(before: frozenset[threading.Thread], forgiven: Forgiven) -> Iterator[Leak]:
    new = [thread for thread in _threads() - before if not forgiven(f"thread:{thread.name}")]
    until = time.monotonic() + _ENDING_SECONDS
    for thread in new:
        thread.join(max(0.0, until - time.monotonic()))
    running = sorted((thread for thread in new if thread.is_alive()), key=lambda thread: thread.name)
    of_libraries = [thread for thread in running if _is_of_library(_origin(thread))]
    own = [thread for thread in running if thread not in of_libraries]
    if own:
        what = f"{count(len(own), 'thread')} still running: {', '.join(thread.name for thread in own)}"
        yield Leak(what, ", ".join({_pattern(thread): None for thread in own}), lasting=True)
    if of_libraries:
        names = ", ".join(thread.name for thread in of_libraries)
        what = f"{count(len(of_libraries), 'thread')} of a library still running: {names}, kept"
        yield Leak(what, _pattern(of_libraries[0]), restored=False)


def _pattern(thread: threading.Thread) -> str:
    """Return a pattern for threads of this name; a number in it is another one in the next run."""
    return f"thread:{re.sub('[0-9]+', '*', thread.name)}"


def _is_of_library(module: str) -> bool:
    """Whether a module was installed, so that an object which a library keeps may need the thread."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(file.startswith(folder + os.sep) for folder in _INSTALLED)


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


def _end_children(before: frozenset[int], forgiven: Forgiven) -> Iterator[Leak]:
    new = _children() - before
    if not new or forgiven("child process"):
        return
    import psutil  # noqa: PLC0415  slow, and most tests start no process

    _, running = psutil.wait_procs((p for p in psutil.Process().children() if p.pid in new), _ENDING_SECONDS)
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(running)
    if running:
        what = count(len(running), "child process", "child processes")
        yield Leak(f"{what} still running: ended", "child process")


def _cuda_bytes() -> int:
    """Return the memory that is allocated on this rank's device, without the workspaces of cuBLAS.

    torch allocates those, 64 MiB on an H100, for the first product of matrices, and again after they were freed.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return 0
    clear_cublas_workspaces()
    return torch.cuda.memory_allocated()


def _find_cuda_memory(before: int, forgiven: Forgiven) -> Iterator[Leak]:
    if forgiven("CUDA memory") or _cuda_bytes() - before <= _CUDA_BYTES:
        return
    gc.collect()
    grown = _cuda_bytes() - before
    if grown > _CUDA_BYTES:
        yield Leak(f"{grown / 2**20:.1f} MiB of CUDA memory still allocated", "CUDA memory", lasting=True)


def _find_unmatched_operations(_: None, forgiven: Forgiven) -> Iterator[Leak]:
    for operation in current.unmatched_operations():
        if not forgiven("operation"):
            yield Leak(operation, "operation", restored=False)


RESOURCES = (
    LeakKind(_environment, _restore_environment),
    LeakKind(_groups, _find_groups),
    LeakKind(_threads, _await_threads),
    LeakKind(_children, _end_children),
    LeakKind(_cuda_bytes, _find_cuda_memory),
    LeakKind(lambda: None, _find_unmatched_operations),
)
