"""Makes torch create every new process group as an `ObservedGroup`, and undoes that."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.autograd import patch_backward, restore_backward
from pytest_ddp.observed.recording.interfaces import Monitor
from pytest_ddp.observed.recording.process_group import ObservedGroup
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.observed.recording.work import patch_futures, restore_futures

_HELPER = "_new_process_group_helper"  # init_process_group and new_group both call it
_originals: list[Callable[..., Any]] = []


def observe(monitor: Monitor) -> None:
    """Start a record, with this monitor, of the groups that this process makes from now on."""
    if _originals:
        return
    record = Record(monitor)
    current.set_record(record)
    patch_backward(record)
    patch_futures(record)
    make_group = getattr(distributed_c10d, _HELPER)

    def make_observed(*args: Any, **keywords: Any) -> Any:
        distributed_c10d.ProcessGroup = ObservedGroup  # type: ignore[assignment, misc]  # the helper calls this name
        try:
            return make_group(*args, **keywords)
        finally:
            distributed_c10d.ProcessGroup = dist.ProcessGroup  # type: ignore[misc]

    _originals.append(make_group)
    setattr(distributed_c10d, _HELPER, make_observed)


def stop_observing() -> None:
    """Let torch make ordinary groups again, and drop the record."""
    if _originals:
        setattr(distributed_c10d, _HELPER, _originals.pop())
        restore_backward()
        restore_futures()
        current.reset()
        current.set_record(None)
