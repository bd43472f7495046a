"""Makes torch create every new process group as an `ObservedGroup`, and undoes that."""

from collections.abc import Callable
from typing import Any

from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.autograd import patch_backward, restore_backward
from pytest_ddp.observed.recording.interfaces import Monitor
from pytest_ddp.observed.recording.process_group import ObservedGroup
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.observed.recording.work import patch_futures, restore_futures
from pytest_ddp.torch_internals import group_factory, new_groups_of_class, set_group_factory

_originals: list[Callable[..., Any]] = []


def observe(monitor: Monitor) -> None:
    """Start a record, with this monitor, of the groups that this process makes from now on."""
    if _originals:
        return
    record = Record(monitor)
    current.set_record(record)
    patch_backward(record)
    patch_futures(record)
    make_group = group_factory()

    def make_observed(*args: Any, **keywords: Any) -> Any:
        with new_groups_of_class(ObservedGroup):
            return make_group(*args, **keywords)

    _originals.append(make_group)
    set_group_factory(make_observed)


def stop_observing() -> None:
    """Let torch make ordinary groups again, and drop the record."""
    if _originals:
        set_group_factory(_originals.pop())
        restore_backward()
        restore_futures()
        current.reset()
        current.set_record(None)
