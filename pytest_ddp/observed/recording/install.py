"""Puts an `ObservedGroup` under every process group that is made from now on, and takes it away again."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.autograd import ignore_backward, watch_backward
from pytest_ddp.observed.recording.futures import ignore_futures, watch_futures
from pytest_ddp.observed.recording.interfaces import Monitor
from pytest_ddp.observed.recording.process_group import ObservedGroup
from pytest_ddp.observed.recording.record import Record

_HELPER = "_new_process_group_helper"  # where init_process_group and new_group meet
_replaced: list[Callable[..., Any]] = []


def observe(monitor: Monitor) -> None:
    """Observe the groups that this process makes from now on; start a record that `monitor` is told of."""
    if _replaced:
        return
    record = Record(monitor)
    current.set_record(record)
    watch_backward(record)
    watch_futures(record)
    make_group = getattr(distributed_c10d, _HELPER)

    def make_observed(*args: Any, **keywords: Any) -> Any:
        distributed_c10d.ProcessGroup = ObservedGroup  # type: ignore[assignment, misc]  # what the helper makes
        try:
            return make_group(*args, **keywords)
        finally:
            distributed_c10d.ProcessGroup = dist.ProcessGroup  # type: ignore[misc]

    _replaced.append(make_group)
    setattr(distributed_c10d, _HELPER, make_observed)


def stop_observing() -> None:
    """Make groups as torch does, as before `observe`."""
    if _replaced:
        setattr(distributed_c10d, _HELPER, _replaced.pop())
        ignore_backward()
        ignore_futures()
        current.reset()
        current.set_record(None)
