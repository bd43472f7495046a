"""The methods of a process group that communicate, and what their arguments mean.

torch renames them now and then: what two versions call differently has one name here.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.events import POINT_TO_POINT, Entry, Moment, Shapes
from pytest_ddp.torch_internals import OPTION_TYPES


@dataclass(frozen=True)
class Operation:
    """What a method of `ProcessGroup` does.

    Attributes:
        name: what torch.distributed calls it.
        results_first: whether its first argument is what it fills, and its second what it takes.
        takes: whether it takes tensors of this rank's; a receive does not.
        rooted: whether it has a root.
        reduces: whether it has a reduction.
        splits: whether its third and fourth arguments say how tensors are split.
        blocks: whether it waits for the other ranks itself, rather than giving a handle to wait for.
        message: whether it is a send or a receive.
    """

    name: str
    results_first: bool = False
    takes: bool = True
    rooted: bool = False
    reduces: bool = False
    splits: bool = False
    blocks: bool = False
    message: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.name in POINT_TO_POINT)


_ALL_GATHER = Operation("all_gather_into_tensor", results_first=True)
_ALL_GATHERS = Operation("all_gather_into_tensor_coalesced", results_first=True)
_REDUCE_SCATTER = Operation("reduce_scatter_tensor", results_first=True, reduces=True)
_REDUCE_SCATTERS = Operation("reduce_scatter_tensor_coalesced", results_first=True, reduces=True)
_ALL_TO_ALL = Operation("all_to_all_single", results_first=True, splits=True)
_GATHER = Operation("gather_into_tensor", results_first=True, rooted=True)
_EVERY_VERSIONS = {
    "allreduce": Operation("all_reduce", reduces=True),
    "allreduce_coalesced": Operation("all_reduce_coalesced", reduces=True),
    "allgather": Operation("all_gather", results_first=True),
    "_allgather_base": _ALL_GATHER,
    "all_gather_single": _ALL_GATHER,
    "allgather_coalesced": Operation("all_gather_coalesced", results_first=True),
    "allgather_into_tensor_coalesced": _ALL_GATHERS,
    "all_gather_single_coalesced": _ALL_GATHERS,
    "gather_into_tensor": _GATHER,
    "gather_single": _GATHER,
    "reduce_scatter": Operation("reduce_scatter", results_first=True, reduces=True),
    "_reduce_scatter_base": _REDUCE_SCATTER,
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTERS,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTERS,
    "alltoall": Operation("all_to_all", results_first=True),
    "alltoall_base": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Operation("broadcast", rooted=True),
    "reduce": Operation("reduce", rooted=True, reduces=True),
    "gather": Operation("gather", results_first=True, rooted=True),
    "scatter": Operation("scatter", results_first=True, rooted=True),
    "send": Operation("send"),
    "recv": Operation("recv", takes=False),
    "recv_anysource": Operation("recv", takes=False),
    "barrier": Operation("barrier"),
    "monitored_barrier": Operation("monitored_barrier", blocks=True),
}
OPERATIONS = {method: operation for method, operation in _EVERY_VERSIONS.items() if hasattr(dist.ProcessGroup, method)}
NAMES = frozenset(operation.name for operation in _EVERY_VERSIONS.values())


# One call of a method of a process group: what it is given, and how to make it.
# Reading a call is on the path of every operation, where the caches are cold: it is written to do little.

_BLOCKING = ("send", "recv", "send_object_list", "recv_object_list")
_REDUCTIONS = {value: name for name, value in dist.ReduceOp.RedOpType.__members__.items()}


class Call:
    """A call `real.method(*args, **keywords)` that is about to be made.

    Attributes:
        group: the name of the group.
        ranks: its global ranks.
        real: the real group.
        method: which method of it is called.
        args: the arguments by position; a gate may replace them.
        keywords: the other arguments.
        operation: what the method does.
        given: the arguments, by position or not.
    """

    def __init__(
        self,
        group: str,
        ranks: tuple[int, ...],
        real: dist.ProcessGroup,
        *,
        method: str,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self.group, self.ranks, self.real, self.method = group, ranks, real, method
        self.args, self.keywords = args, keywords
        self.operation = OPERATIONS[method]
        self.given = (*args, *keywords.values()) if keywords else args

    def issue(self) -> Any:
        """Make the call; return the Work of the real group, or what else it returns."""
        return getattr(self.real, self.method)(*self.args, **self.keywords)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it takes."""
        if not self.operation.takes:
            return []
        return tensors_in(self.given[1:2] if self.operation.results_first else self.given[:1])

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that it fills; those that it takes where it works in place."""
        return [] if self.operation.name == "send" else tensors_in(self.given[:1])

    @property
    def timeout(self) -> timedelta | None:
        """How long a call that blocks waits at most."""
        return next((found for found in self.given if isinstance(found, timedelta)), None)

    @property
    def numbering(self) -> Hashable:
        """What is counted together in the group: its collectives, or the messages to or from one peer with one tag."""
        return (self.operation.name, self._peer, self.given[-1]) if self.operation.message else None

    def entry(self, number: int, sequence: int, launched: Moment, line: str, called: str) -> Entry:
        """Return what the record says of the call."""
        operation, inputs = self.operation, self.inputs
        payload = inputs or self.outputs
        options = next((found for found in self.given if type(found) in OPTION_TYPES), None)
        return Entry(
            op=operation.name,
            group=self.group,
            ranks=self.ranks,
            shapes=_shapes(payload),
            outputs=_shapes(self.outputs) if inputs and operation.results_first else (),
            dtype=str(payload[0].dtype).removeprefix("torch.") if payload else "",
            bytes=sum([tensor.numel() * tensor.element_size() for tensor in payload]),
            root=self._root(options) if operation.rooted else None,
            peer=self._peer if operation.message else None,
            tag=self.given[-1] if operation.message else 0,
            reduce_op=self._reduction(options) if operation.reduces else "",
            splits=(tuple(self.given[3]), tuple(self.given[2])) if operation.splits else ((), ()),
            number=number,
            sequence=sequence,
            asynchronous=self._asynchronous(options, called),
            called=called,
            line=line,
            launched=launched,
        )

    def _asynchronous(self, options: Any, called: str) -> bool:
        """Whether the caller wants a handle: collectives say so in their options, messages by their function alone."""
        if self.operation.message:
            return called not in _BLOCKING
        return bool(getattr(options, "asyncOp", not self.operation.blocks))

    def _root(self, options: Any) -> int:
        named = next((found for found in self.given if isinstance(found, int)), 0)
        return self._global(getattr(options, "rootRank", named))

    @property
    def _peer(self) -> int | None:
        return None if self.method == "recv_anysource" else self._global(self.given[1])

    def _global(self, rank: int) -> int:
        """Return the global rank of a rank of the group; what is no rank is left for the real group to refuse."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else rank

    def _reduction(self, options: Any) -> str:
        if options is None:
            options = next((found for found in self.given if isinstance(found, dist.ReduceOp)), dist.ReduceOp.SUM)
        found = getattr(options, "reduceOp", options)
        return _REDUCTIONS[getattr(found, "op", found)]


def tensors_in(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found for tensor in tensors_in(part)] if isinstance(found, list | tuple) else []


def _shapes(tensors: list[torch.Tensor]) -> Shapes:
    return tuple([tuple(tensor.shape) for tensor in tensors])
