"""Brings the faults of a plan into a run of simulated ranks."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_ddp.planning.faults import Crash, Fault
from pytest_ddp.simulated.faults.file_faults import FileFaults
from pytest_ddp.simulated.faults.network_faults import NetworkFaults
from pytest_ddp.simulated.scheduler import Scheduler


@contextmanager
def injection(faults: Sequence[Any], scheduler: Scheduler) -> Iterator[list[Callable[[Any], None]]]:
    """Yield functions to call with each launch, and watch files while the block runs if a rank is to be killed.

    Args:
        faults: plain data, or functions that are called as they are.
        scheduler: of the ranks.
    """
    plan = [fault for fault in faults if isinstance(fault, Fault)]
    hooks = [fault for fault in faults if not isinstance(fault, Fault)]
    if not plan:
        yield hooks
        return
    network = NetworkFaults(plan, scheduler.yield_to_others)
    if any(isinstance(fault, Crash) for fault in plan):  # a killed rank changes no file, wherever it was killed
        with FileFaults(lambda: rank_that_runs(scheduler), network.before_file).watched():
            yield [*hooks, network]
    else:
        yield [*hooks, network]


def rank_that_runs(scheduler: Scheduler) -> int | None:
    """Return the rank whose thread calls this; None in other threads."""
    current = scheduler.current
    return None if current is None or threading.current_thread() is not current.thread else current.number
