"""The private names of torch's test harnesses that this package uses, and no others.

They are in torch.testing._internal, and the same from torch 2.11 to 2.15. A new release of torch that changes one of
them breaks this module and no other. tests/unit/adopted/test_harness_internals.py checks each.
"""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from types import MethodType
from typing import Any

HARNESSES = "torch.testing._internal.common_distributed"
PROCESSES, THREADS, WORKERS = "MultiProcessTestCase", "MultiThreadedTestCase", "MultiProcContinuousTest"
_UNSET = -2  # the world size of a class of `MultiProcContinuousTest` that sets none
# The methods of each harness that ranks replace or never call.
REPLACED = {
    PROCESSES: ("_start_processes", "_join_processes", "_check_return_codes"),
    THREADS: ("_join_threads", "_check_return_codes"),
    WORKERS: ("_worker_run_main_wait", "_worker_loop"),
}
# The method of each harness that decides where a test runs; classes that run all ranks in one process override it.
DECIDES = {PROCESSES: "join_or_run", THREADS: "join_or_run", WORKERS: "_ensure_processes_spawned"}


def harness_of(cls: type) -> type | None:
    """Return the harness of torch that a test class is derived from; None if it is not."""
    return next((base for base in cls.__mro__ if base.__module__ == HARNESSES and base.__name__ in REPLACED), None)


def overridden(cls: type, harness: type, *methods: str) -> list[str]:
    """Return those of these methods of a harness that a class overrides, or one of its bases below the harness."""
    between = cls.__mro__[: cls.__mro__.index(harness)]
    return [name for name in methods if any(name in vars(base) for base in between)]


def reason_of_exit_code(code: object) -> str | None:
    """Return the reason for which torch's decorators skip a test by this exit code; None for other codes."""
    harnesses = sys.modules.get(HARNESSES)
    skips = harnesses.TEST_SKIPS.values() if harnesses else ()
    return next((skip.message for skip in skips if skip.exit_code == code), None)


def worker_count(cls: Any) -> int:
    """Return the world size of a class of `MultiProcContinuousTest`: if it sets none, the number of its devices."""
    size = getattr_static(cls, "world_size")
    if isinstance(size, property) and size.fget:
        return int(size.fget(object.__new__(cls)))
    if size != _UNSET:
        return int(size)
    import torch  # noqa: PLC0415  the test class has imported it

    return int(torch.get_device_module(worker_device(cls)).device_count())


def worker_device(cls: Any) -> str:
    """Return the type of the devices of such a class: its method, property or attribute `device_type`."""
    device = cls.device_type
    if isinstance(device, property) and device.fget:
        return str(device.fget(cls))
    return str(device() if callable(device) else device)


def method_name(test: Any) -> str:
    """Return the name of the method that a test case runs."""
    return str(test.id()).rpartition(".")[2]


def replace_processes(harness: Any, start: Callable[[Any], None], join: Callable[[Any, Any], None]) -> None:
    """Call `start(test)` instead of starting processes, and `join(test, method)` instead of waiting for them."""
    harness._spawn_processes = lambda test: start(test)  # noqa: PLW0108  a bound method would not receive the test
    harness._start_processes = lambda test, _: start(test)
    harness._join_processes = lambda test, method: join(test, method)  # noqa: PLW0108  likewise
    harness.run_test = _run_method


def _run_method(test: Any, name: str, _: object) -> None:
    """Run a test as a process of the harness does, but let its exceptions pass."""
    from torch.testing._internal import common_utils  # noqa: PLC0415  the test class has imported it

    common_utils.set_rng_seed()  # type: ignore[no-untyped-call]  # torch's own
    getattr(test, name)()


def run_process(test: Any, rank: int, file_name: str) -> None:
    """Do what one process of a test does."""
    type(test)._run(rank, method_name(test), file_name, None, fake_pg=getattr(test, "fake_pg", False))


def replace_threads(harness: Any, join: Callable[[Any], None]) -> None:
    """Start no threads, and call `join(test)` instead of waiting for them; the test uses the rank's group."""
    harness._spawn_threads = lambda _: None
    harness._join_threads = classmethod(lambda _, __, method: join(method.__self__))
    harness.run_test_with_threaded_pg = _run_between


def _run_between(test: Any, name: str, rank: int, world_size: int) -> None:  # noqa: ARG001  as torch calls it
    test.perThreadSetUp()
    try:
        getattr(test, name)()
    finally:
        test.perThreadTearDown()


def run_thread(test: Any, rank: int, world_size: int) -> None:
    """Do what one thread of a test does."""
    type(test)._run(method_name(test), rank, world_size)


def replace_workers(harness: Any, run: Callable[[Any], None]) -> None:
    """Start no workers, and call `run(test)` instead of sending a test to them."""

    def waiting(test: Any, method: Callable[[], None]) -> MethodType:
        @wraps(method)
        def wait(test: Any) -> None:
            if test.rank == test.MAIN_PROCESS_RANK:
                run(test)
            else:
                method()

        return MethodType(wait, test)

    harness._worker_run_main_wait = waiting
    harness._spawn_processes = classmethod(_spawn_none)


def _spawn_none(cls: Any, _: int) -> None:
    cls.processes, cls.task_queues, cls.completion_queues, cls.rdvz_file = [], [], [], ""


def run_worker(test: Any, rank: int, world_size: int, file_name: str) -> None:
    """Do what one worker does from its start to the end of its first test."""
    cls = type(test)
    cls.rank, cls.world_size = rank, world_size
    cls._init_pg(rank, world_size, file_name)
    cls._run_test_given_id(test.id())
