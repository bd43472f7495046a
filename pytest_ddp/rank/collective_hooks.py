"""Records the operations that this rank enters, and its waits for them, where its groups are not observed.

torch from 2.15 on calls a hook before each operation of a group, also one that C++ issues (torch's own DDP). Older
versions have no such hook: there only operations that Python issues are recorded, by the methods of `ProcessGroup`.
"""

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from pytest_ddp.observed.recording.call import BLOCKING, Call
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, shapes_text
from pytest_ddp.operations.table import METHODS, RECV, Operation, hooked
from pytest_ddp.protocol.flight_recorder import Recorder
from pytest_ddp.rank.connections import connections_of_group
from pytest_ddp.rank.message_log import MessageLog
from pytest_ddp.torch_internals import (
    device_of_group,
    group_factory,
    new_group_in,
    ranks_of_new_group,
    set_group_factory,
    timeout_on,
)

_HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
_HOOK_ID = 0xDD9
_recorder: Recorder | None = None
_watchers: list[tuple[int, Callable[[Fingerprint], None]]] = []  # with the thread that began to watch
_lock = threading.Lock()


@dataclass
class _Group:
    """A process group: its name, its global ranks and this one, a counter for each stream of its operations."""

    name: str
    ranks: tuple[int, ...]
    rank: int
    is_default: bool
    device: torch.device
    counters: dict[Hashable, Iterator[int]] = field(default_factory=lambda: defaultdict(partial(itertools.count, 1)))
    tags_from_any_rank: set[int] = field(default_factory=set)


class _Issued(threading.local):
    """The operation that a method of a group is issuing in this thread, with its tag and its index in the recorder.

    `blocks` says whether the function that issues it waits for it too; it is known for messages only.
    """

    tag: int = 0
    blocks: bool = False
    index: int | None = None


_groups: dict[str, _Group] = {}
_works: "WeakKeyDictionary[Any, tuple[int, timedelta]]" = WeakKeyDictionary()
_issued = _Issued()
_log = MessageLog()


def record_to(recorder: Recorder | None) -> None:
    """Record the operations of the groups that are made from now on; with None, those of no group."""
    global _recorder  # noqa: PLW0603  a process's
    _recorder = recorder
    _groups.clear()
    _works.clear()
    _log.begin(is_on=False)


def begin_anew() -> None:
    """Count the operations of the groups that there are from one on again."""
    for group in _groups.values():
        group.counters.clear()
        group.tags_from_any_rank.clear()
    _works.clear()
    _log.begin(is_on=False)


def only_collectives() -> bool:
    """Whether there is one group that is recorded, and no message was sent in it or received."""
    return len(_groups) == 1 and all(stream is None for group in _groups.values() for stream in group.counters)


def begin_test(*, has_group: bool) -> None:
    """Note the messages of a test, if its default group is that of the run."""
    _log.begin(is_on=has_group)


def unfinished_messages() -> list[str]:
    """Describe the messages of the test at hand that are not finished (see `MessageLog.unfinished`)."""
    return _log.unfinished(_recorder) if _recorder is not None else []


@contextmanager
def watch_collectives(watcher: Callable[[Fingerprint], None]) -> Iterator[None]:
    """Call `watcher` with every operation that this process enters, from any thread, before it is issued.

    A simulated rank is a thread: there it is called with what this thread enters (see `announce`).
    """
    entry = threading.get_ident(), watcher
    _watchers.append(entry)
    try:
        yield
    finally:
        _watchers.remove(entry)


def announce(fingerprint: Fingerprint) -> None:
    """Call the watchers of this thread with an operation of a simulated group, which is not recorded here."""
    for thread, watcher in tuple(_watchers):
        if thread == threading.get_ident():
            watcher(fingerprint)


def install() -> None:
    """Start to see operations, in this process and those forked from it. Groups made before are not seen."""
    os.register_at_fork(after_in_child=partial(record_to, None))  # a process that a test forks is no rank
    make_group = group_factory()

    def make_recorded_group(*args: Any, **keywords: Any) -> Any:
        with connections_of_group():
            made = make_group(*args, **keywords)
        group = new_group_in(made)
        if group is not None and not hasattr(group, "network"):  # a simulation sees the operations of its groups itself
            _add_group(group, ranks_of_new_group(args, keywords))
        return made

    set_group_factory(make_recorded_group)
    for method in filter(partial(hasattr, dist.ProcessGroup), METHODS):
        setattr(dist.ProcessGroup, method, _recording(method, getattr(dist.ProcessGroup, method)))
    dist.Work.wait = _marking(dist.Work.wait)  # type: ignore[method-assign]


def _add_group(group: dist.ProcessGroup, members: tuple[int, ...]) -> None:
    ranks = members or tuple(range(group.size()))
    name, rank, device = group.group_name, ranks[group.rank()], device_of_group(group)
    if name in _groups:  # the test has made it anew, perhaps of other ranks
        _log.begin(is_on=False)
    known = _groups[name] = _Group(name, ranks, rank, not members, device)
    if _HAS_HOOKS:
        group.register_pre_hook(_HOOK_ID, partial(_before, known))  # not the group: it would never be freed


def _before(group: _Group, args: Any) -> None:
    """Be torch's hook: record an operation that Python or C++ issues."""
    tensors = args.input_tensors or args.output_tensors
    rank = group.ranks[args.root] if 0 <= args.root < len(group.ranks) else None
    _record(group, hooked(args.name.name), tensors, rank, asynchronous=args.async_op)


def _recording(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `ProcessGroup` that knows which operation its handle is of."""
    is_message = METHODS[method].point_to_point

    def issue(group: Any, *args: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        known = _groups.get(group.group_name) if _recorder or _watchers else None
        if known is None:
            return original(group, *args, **keywords)
        if is_message or not _HAS_HOOKS:
            with suppress(IndexError, TypeError):  # wrong arguments: the original method says so
                _issued.blocks = is_message and caller()[1] in BLOCKING
                _announce(known, Call(known.name, known.ranks, group, method, args, keywords))
        try:
            work = original(group, *args, **keywords)
            if work is not None and _issued.index is not None:
                _works[work] = _issued.index, timeout_on(group, known.device)
            return work
        finally:
            _issued.tag, _issued.blocks, _issued.index = 0, False, None

    return issue


def _announce(group: _Group, call: Call) -> None:
    """Record a call; where there are hooks, only say what they do not know."""
    _issued.tag = call.tag
    if not _HAS_HOOKS:
        rank = call.peer if call.operation.point_to_point else call.root
        _record(group, call.operation, call.inputs or call.outputs, rank, asynchronous=call.asynchronous)


def _record(
    group: _Group, operation: Operation, tensors: Sequence[torch.Tensor], rank: int | None, *, asynchronous: bool
) -> None:
    """Record an operation; `rank` is the global rank of its peer or root, None for any or none."""
    if not (_recorder or _watchers):
        return
    is_message, tag = operation.point_to_point, _issued.tag
    with _lock:
        if operation.name == RECV and rank is None:
            group.tags_from_any_rank.add(tag)
        fingerprint = Fingerprint(
            op=operation.name,
            group=group.name,
            ranks=group.ranks,
            number=next(group.counters[(operation.name, rank, tag) if is_message else None]),
            rank=group.rank,
            peer=(ANY_RANK if rank is None else rank) if is_message else None,
            tag=tag,
            root=rank if operation.rooted else None,
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            shapes=shapes_text([tensor.shape for tensor in tensors]),
            elements=sum([tensor.numel() for tensor in tensors]),
            asynchronous=not _issued.blocks if is_message else asynchronous,
            after_any_rank=operation.name == RECV and tag in group.tags_from_any_rank,
            default=group.is_default,
        )
        if _recorder is not None:
            _issued.index = _recorder.count
            if is_message:  # over NCCL, a handle may stand for several messages
                on_cpu = bool(tensors) and tensors[0].device.type == "cpu"
                _log.add(_recorder.count, fingerprint, has_handle=fingerprint.asynchronous and on_cpu)
            _recorder.record(fingerprint.encode())
    for _, watcher in tuple(_watchers):
        watcher(fingerprint)


def _marking(wait: Callable[..., bool]) -> Callable[..., bool]:
    """Return a method `Work.wait` that says meanwhile that this rank waits."""

    def wait_marked(work: Any, *args: Any, **keywords: Any) -> bool:
        __tracebackhide__ = True
        index, timeout = _works.get(work, (None, timedelta(0)))
        recorder = _recorder
        if index is None or recorder is None:
            return wait(work, *args, **keywords)
        _log.waited_for(index)
        recorder.mark_waiting(index, next(iter((*args, *keywords.values())), timeout))
        try:
            return wait(work, *args, **keywords)
        finally:
            recorder.mark_running()

    return wait_marked
