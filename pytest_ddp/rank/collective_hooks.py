"""The record of the collectives that this process enters.

torch from 2.15 on calls a hook before each collective of a group, also for those that C++ issues (torch's own DDP).
Older versions have no such hook: there the methods of `ProcessGroup` are wrapped, which sees every call made from
Python and none made by C++.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.planning.world import format_ranks
from pytest_ddp.rank.process_group import connections_of_group
from pytest_ddp.torch_internals import group_factory, new_group_in, ranks_of_new_group, set_group_factory

_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single": "all_gather_into_tensor",
    "gather_into_tensor": "gather_into_tensor",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}
_DIRECTIONS = {"send": "to", "recv": "from"}
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
_HOOK_ID = 0xDD9
_SHAPES_SHOWN = 3


@dataclass(frozen=True)
class Collective:
    """One collective, or message between two ranks, at the moment this rank entered it.

    Attributes:
        op: the operation, named as in torch.distributed.
        group: the name of its process group.
        sequence: counts the group's collectives from 1; messages are counted apart, for each peer and direction.
        shapes: of the tensors that this rank gives, or, where it gives none, of those that it wants.
        dtype, bytes: of these.
        members: the global ranks of the group; empty for the default group, which has all; None where not known.
        peer: the global rank that a message goes to or comes from; None for any.
    """

    op: str
    group: str
    sequence: int
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    bytes: int = 0
    members: tuple[int, ...] | None = ()
    peer: int | None = None

    def __str__(self) -> str:
        first, others = self.shapes[:_SHAPES_SHOWN], self.shapes[_SHAPES_SHOWN:]
        shapes = " + ".join(str(list(shape)) for shape in first) + (" + ..." if others else "")
        peer = "" if self.peer is None else f" {_DIRECTIONS[self.op]} rank {self.peer}"
        ranks = f" ({format_ranks(self.members)})" if self.members else ""
        group = "" if self.members == () else f" in group {self.group}{ranks}"
        return f"{self.op} #{self.sequence}{peer}{f' {self.dtype}{shapes}' if self.shapes else ''}{group}"


Callback = Callable[[Collective], None]
_watchers: list[Callback] = []


@dataclass
class _Group:
    """What is known of a process group: its ranks as in `Collective`, and how many of what have been entered."""

    members: tuple[int, ...] | None = None
    counters: dict[tuple[str, int | None], Iterator[int]] = field(
        default_factory=lambda: defaultdict(partial(itertools.count, 1))
    )

    def enter(self, op: str, peer: int | None) -> tuple[int, int | None]:
        """Count an operation; return its number, and the global rank of its peer."""
        if op not in _DIRECTIONS:
            return next(self.counters["", None]), None
        known = None if peer is None or peer < 0 else self.members[peer] if self.members else peer
        return next(self.counters[op, known]), known


_groups: dict[str, _Group] = defaultdict(_Group)


@contextmanager
def watch_collectives(callback: Callback) -> Iterator[None]:
    """Call `callback` with every collective that this process enters, from any thread, before it is issued."""
    _watchers.append(callback)
    try:
        yield
    finally:
        _watchers.remove(callback)


def _tell(op: str, group: str, tensors: list[torch.Tensor], peer: int | None = None) -> None:
    sequence, known_peer = _groups[group].enter(op, peer)
    collective = Collective(
        op=op,
        group=group,
        sequence=sequence,
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        members=_groups[group].members,
        peer=known_peer,
    )
    for watcher in tuple(_watchers):
        watcher(collective)


def install() -> None:
    """Start to see collectives, in this process and those forked from it. Groups made before are not seen."""
    make_group = group_factory()

    def make_watched_group(*args: Any, **kwargs: Any) -> Any:
        with connections_of_group():
            made = make_group(*args, **kwargs)
        group = new_group_in(made)
        if group is not None:
            _groups[group.group_name] = _Group(ranks_of_new_group(args, kwargs))
            if _HAS_HOOKS:
                group.register_pre_hook(_HOOK_ID, _hook(group.group_name))
        return made

    set_group_factory(make_watched_group)
    if not _HAS_HOOKS:
        for name in filter(partial(hasattr, dist.ProcessGroup), _NAMES):
            setattr(dist.ProcessGroup, name, _wrapped(name, getattr(dist.ProcessGroup, name)))


def _hook(group: str) -> Callable[[Any], None]:
    """Return a hook for the group of that name: one that held the group itself would keep it for ever."""

    def before(args: Any) -> None:
        name = args.name.name.lower()
        tensors = _tensors(args.input_tensors) or _tensors(args.output_tensors)
        _tell(_NAMES.get(name, name), group, tensors, args.root)

    return before


def _wrapped(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = _tensors(args[1:2]) if _NAMES[name].startswith(_OUTPUT_FIRST) else []
        peer = args[1] if name in _DIRECTIONS else None
        _tell(_NAMES[name], group.group_name, inputs or _tensors(args[:1]), peer)
        return method(group, *args, **kwargs)

    return call


def _tensors(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found for tensor in _tensors(part)] if isinstance(found, list | tuple) else []
