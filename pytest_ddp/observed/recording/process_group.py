"""A process group that records every operation and delegates it to the real group.

`observe` makes torch create every new group as one; `stop_observing` undoes that.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store, Work

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.autograd import patch_backward, restore_backward
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.record import Monitor, Record
from pytest_ddp.observed.recording.work import ObservedWork, patch_futures, restore_futures
from pytest_ddp.operations.table import METHODS
from pytest_ddp.torch_internals import (
    GROUP_SETTERS,
    CoalescingGroup,
    all_groups,
    group_factory,
    new_groups_of_class,
    set_group_factory,
    share_backends,
)

RealGroup = dist.ProcessGroup
_APPLIED_TO_BOTH = (
    *GROUP_SETTERS,
    "register_pre_hook",
    "register_post_hook",
    "unregister_pre_hook",
    "unregister_post_hook",
)
_original_factories: list[Callable[..., Any]] = []


class ObservedGroup(CoalescingGroup):
    """Replaces a `ProcessGroup` wherever torch makes or takes one.

    C++ code (torch's DDP, functional collectives) calls these methods too: torch forwards the virtual methods of a
    group to a subclass in Python. The backends are also registered with this group, for methods that are not
    overridden.

    Attributes:
        real: the group that runs the operations.
    """

    def __init__(self, store: Store, rank: int, size: int, real: RealGroup | None = None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # torch before 2.12 has no such constructor for subclasses
            super().__init__(rank, size)
        self.real = RealGroup(store, rank, size) if real is None else real
        self._record = current.record()
        self._ranks: tuple[int, ...] = ()
        self._counters: dict[Hashable, Iterator[int]] = defaultdict(partial(itertools.count, 1))
        self._coalesced: list[Entry] | None = None

    @classmethod
    def wrap(cls, real: RealGroup) -> "ObservedGroup":
        """Return an observed group for an existing group."""
        group = cls(real.get_group_store(), real.rank(), real.size(), real)
        share_backends(real, group)
        return group

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device to which the group was bound when it was made."""
        device: torch.device | None = self.real.bound_device_id
        return device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        RealGroup.bound_device_id.__set__(self, device)  # type: ignore[attr-defined]  # a property
        self.real.bound_device_id = device

    def get_group_store(self) -> Store:
        """Return the store of the real group."""
        return self.real.get_group_store()

    def split_group(self, *args: Any, **keywords: Any) -> RealGroup | None:
        """Split the real group; return the new group, observed."""
        made = self.real.split_group(*args, **keywords)
        return None if made is None else ObservedGroup.wrap(made)

    def merge_remote_group(self, *args: Any, **keywords: Any) -> RealGroup:
        """Merge the real group with another; return the new group, observed."""
        return ObservedGroup.wrap(self.real.merge_remote_group(*args, **keywords))

    def begin_anew(self) -> None:
        """Number the operations from one on again."""
        self._counters.clear()

    def coalescing_begins(self) -> None:
        """Collect the operations from now on."""
        self._coalesced = []

    def coalescing_ends(self, end: Callable[[], Any]) -> Any:
        """Return an observed handle of the operations collected."""
        entries, self._coalesced = self._coalesced or [], None
        return self._observe(self._record.gate.coalesce(entries, end()), entries)

    def _issue(self, method: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        self._ranks = self._ranks or tuple(dist.get_process_group_ranks(self))
        call = Call(self.group_name, self._ranks, self.real, method, args, keywords)
        entry, work = self._record.issue(call, next(self._counters[call.stream]))
        if self._coalesced is not None:
            self._coalesced.append(entry)
            if work is None:  # `coalescing_ends` completes it
                return None
        return self._observe(work, [entry])

    def _observe(self, work: Any, entries: list[Entry]) -> Any:
        """Return an observed handle; without a handle (NCCL, not asynchronous), the backend has waited already."""
        if work is None and entries:
            with self._record.waiting(entries):
                return None
        return ObservedWork(work, entries, self._record) if isinstance(work, Work) else work


def _recorded(method: str) -> Callable[..., Any]:
    """Return a method that records an operation and issues it."""

    def issue(group: ObservedGroup, *args: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        return group._issue(method, args, keywords)  # noqa: SLF001  one of its methods

    issue.__name__ = method
    return issue


def _applied_to_both(method: str) -> Callable[..., Any]:
    """Return a method that calls the base class's method and then the real group's."""

    def apply(group: ObservedGroup, *args: Any, **keywords: Any) -> None:
        getattr(RealGroup, method)(group, *args, **keywords)
        getattr(group.real, method)(*args, **keywords)

    apply.__name__ = method
    return apply


for _method in filter(partial(hasattr, RealGroup), METHODS):
    setattr(ObservedGroup, _method, _recorded(_method))
for _method in filter(partial(hasattr, RealGroup), _APPLIED_TO_BOTH):
    setattr(ObservedGroup, _method, _applied_to_both(_method))


def observe(monitor: Monitor) -> None:
    """Start a record, with this monitor, of the groups that this process makes from now on."""
    record = Record(monitor)
    current.set_record(record)
    patch_backward(record)
    patch_futures(record)
    make_group = group_factory()

    def make_observed(*args: Any, **keywords: Any) -> Any:
        with new_groups_of_class(ObservedGroup):
            return make_group(*args, **keywords)

    _original_factories.append(make_group)
    set_group_factory(make_observed)


def begin_anew(monitor: Monitor) -> None:
    """Let the groups that there are number their operations from one on again, and call another monitor."""
    current.record().begin_anew(monitor)
    for group in all_groups():
        if isinstance(group, ObservedGroup):
            group.begin_anew()


def stop_observing() -> None:
    """Let torch make ordinary groups again, and drop the record."""
    if _original_factories:
        set_group_factory(_original_factories.pop())
        restore_backward()
        restore_futures()
        current.reset()
        current.set_record(None)
