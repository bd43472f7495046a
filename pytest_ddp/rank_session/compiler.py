"""What torch's compiler keeps in a process for whoever compiles next: threads, a process, variables of the environment.

The first test that compiles starts them, and they stay for good, as torch means them to: that test left nothing behind.
Source: `torch._inductor.async_compile` and `torch._inductor.compile_worker` (torch 2.11 to 2.15).
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

VARIABLES = (
    b"TORCHINDUCTOR_CACHE_DIR",
    b"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    b"TRITON_CACHE_DIR",
    b"TRITON_LIBDEVICE_PATH",
    b"TRITON_PTXAS_PATH",
)


def threads() -> set[Thread]:
    """Return the threads that compile, and those that look after processes that do."""
    found: set[Thread] = set()
    for pool in _pools():
        timer = getattr(pool, "timer", None)
        own = [getattr(pool, "read_thread", None), getattr(pool, "health_thread", None)]
        own += [getattr(timer, "background_thread", None), getattr(pool, "_executor_manager_thread", None)]
        found.update(thread for thread in own if isinstance(thread, Thread))
        if isinstance(pool, ThreadPoolExecutor):
            found |= pool._threads  # noqa: SLF001  there is no public way to know an executor's threads
    return found


def processes() -> set[int]:
    """Return the processes that compile, or that start others that do."""
    found: set[int] = set()
    for pool in _pools():
        if process := getattr(pool, "process", None):
            found.add(process.pid)
        found.update(getattr(pool, "_processes", None) or ())
    return found


def _pools() -> Iterator[Any]:
    compiling = sys.modules.get("torch._inductor.async_compile")
    if compiling is None:
        return
    yield from getattr(compiling, "_pool_set", ())
    pool = compiling.AsyncCompile.pool
    if pool.cache_info().currsize:
        yield pool()
