"""A process group that delegates to a real one and notes down everything that goes through it."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store
from torch.distributed.distributed_c10d import Work

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.work import ObservedWork
from pytest_ddp.operations.table import METHODS

RealGroup = dist.ProcessGroup


class ObservedGroup(RealGroup):
    """Stands in for a `ProcessGroup` wherever torch makes or takes one.

    Python code calls its methods as any object's. So does C++ code (torch's own DDP, functional collectives): torch
    forwards the virtual methods of a group that is a subclass in Python. The backends are registered here too, so
    what is not overridden finds them as in any group.

    Attributes:
        real: the group that everything is delegated to.
    """

    def __init__(self, store: Store, rank: int, size: int, real: RealGroup | None = None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # torch before 2.12 cannot make a subclass that has a store
            super().__init__(rank, size)
        self.real = RealGroup(store, rank, size) if real is None else real
        self._record = current.record()
        self._ranks: tuple[int, ...] = ()
        self._counters: dict[Hashable, Iterator[int]] = defaultdict(partial(itertools.count, 1))
        self._coalesced: list[Entry] | None = None

    @classmethod
    def around(cls, real: RealGroup) -> "ObservedGroup":
        """Return an observed group that delegates to a group which is there already."""
        group = cls(real.get_group_store(), real.rank(), real.size(), real)
        for device in real._device_types:  # noqa: SLF001  no public way
            backend = real._get_backend(device)  # noqa: SLF001  likewise
            kind = dist.Backend.backend_type_map.get(backend.name(), RealGroup.BackendType.CUSTOM)
            RealGroup._set_default_backend(group, kind)  # noqa: SLF001  likewise
            RealGroup._register_backend(group, device, kind, backend)  # noqa: SLF001  likewise
        RealGroup._set_group_name(group, real.group_name)  # noqa: SLF001  likewise
        RealGroup._set_group_desc(group, real.group_desc)  # noqa: SLF001  likewise
        return group

    def _issue(self, method: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        self._ranks = self._ranks or tuple(dist.get_process_group_ranks(self))
        call = Call(self.group_name, self._ranks, self.real, method=method, args=args, keywords=keywords)
        entry, work = self._record.issue(call, next(self._counters[call.stream]))
        if self._coalesced is not None:
            self._coalesced.append(entry)
            if work is None:  # it will be over with the others
                return None
        return self._observed(work, [entry])

    def _observed(self, work: Any, entries: list[Entry]) -> Any:
        """Return an observed handle; where there is none, the backend has waited, as NCCL does for who wants none."""
        if work is None and entries:
            with self._record.waiting(entries):
                return None
        return ObservedWork(work, entries, self._record) if isinstance(work, Work) else work

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the group is bound to from its making on."""
        device: torch.device | None = self.real.bound_device_id
        return device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        RealGroup.bound_device_id.__set__(self, device)  # type: ignore[attr-defined]  # a property
        self.real.bound_device_id = device

    def get_group_store(self) -> Store:
        """Return the store of the real group."""
        return self.real.get_group_store()

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []
        self.real._start_coalescing(device)  # noqa: SLF001  torch's own name

    def _end_coalescing(self, device: torch.device) -> Any:
        entries, self._coalesced = self._coalesced or [], None
        work = self.real._end_coalescing(device)  # noqa: SLF001  likewise
        return self._observed(self._record.gate.coalesced(entries, work), entries)

    def split_group(self, *args: Any, **keywords: Any) -> RealGroup | None:
        """Split the real group; what comes out is observed too."""
        made = self.real.split_group(*args, **keywords)
        return None if made is None else ObservedGroup.around(made)

    def merge_remote_group(self, *args: Any, **keywords: Any) -> RealGroup:
        """Merge the real group; what comes out is observed too."""
        return ObservedGroup.around(self.real.merge_remote_group(*args, **keywords))


def _observing(method: str) -> Callable[..., Any]:
    """Return a method that issues an operation through the record."""

    def issue(group: ObservedGroup, *args: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        return group._issue(method, args, keywords)  # noqa: SLF001  one of its methods

    issue.__name__ = method
    return issue


def _telling_both(method: str) -> Callable[..., Any]:
    """Return a method that says the same to the group and to the real one."""

    def tell(group: ObservedGroup, *args: Any, **keywords: Any) -> None:
        getattr(RealGroup, method)(group, *args, **keywords)
        getattr(group.real, method)(*args, **keywords)

    tell.__name__ = method
    return tell


_SHARED = (
    "_set_default_backend",
    "_register_backend",
    "_set_group_name",
    "_set_group_desc",
    "register_pre_hook",
    "register_post_hook",
    "unregister_pre_hook",
    "unregister_post_hook",
)
for _method in filter(partial(hasattr, RealGroup), METHODS):
    setattr(ObservedGroup, _method, _observing(_method))
for _method in filter(partial(hasattr, RealGroup), _SHARED):
    setattr(ObservedGroup, _method, _telling_both(_method))
