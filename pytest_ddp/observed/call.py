"""One call of a method of a process group: what it is given, and how to make it."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, cached_property
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.entry import POINT_TO_POINT, Entry, Moment, Shapes
from pytest_ddp.observed.operations import OPERATIONS, Operation

_ROOTED = ("broadcast", "reduce", "gather", "gather_into_tensor", "scatter")
_BLOCKING = ("send", "recv", "send_object_list", "recv_object_list")
_REDUCING = ("reduce", "all_reduce", "all_reduce_coalesced")


@dataclass
class Call:
    """A call `real.method(*args, **keywords)` that is about to be made.

    `group` is the name of the group, and `ranks` are its global ranks.
    """

    group: str
    ranks: tuple[int, ...]
    real: dist.ProcessGroup
    method: str
    args: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def issue(self) -> Any:
        """Make the call; return the Work of the real group, or what else it returns."""
        return getattr(self.real, self.method)(*self.args, **self.keywords)

    @cached_property
    def operation(self) -> Operation:
        """What the method does."""
        return OPERATIONS[self.method]

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """The arguments, by position or not."""
        return (*self.args, *self.keywords.values())

    @cached_property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it takes."""
        if self.method.startswith("recv"):
            return []
        return tensors_in(self.given[1:2] if self.operation.results_first else self.given[:1])

    @cached_property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that it fills; those that it takes where it works in place."""
        return [] if self.operation.name == "send" else tensors_in(self.given[:1])

    @property
    def blocks(self) -> bool:
        """Whether the call itself waits for the other ranks, rather than giving a handle to wait for."""
        return self.method == "monitored_barrier"

    @property
    def timeout(self) -> timedelta | None:
        """How long a call that blocks waits at most."""
        return next((found for found in self.given if isinstance(found, timedelta)), None)

    @property
    def numbering(self) -> Hashable:
        """What is counted together in the group: its collectives, or the messages to or from one peer with one tag."""
        name = self.operation.name
        return (name, self._peer, self._tag) if name in POINT_TO_POINT else None

    def entry(self, number: int, sequence: int, launched: Moment, line: str, called: str) -> Entry:
        """Return what the record says of the call."""
        inputs, outputs = self.inputs, self.outputs
        payload = inputs or outputs
        return Entry(
            op=self.operation.name,
            group=self.group,
            ranks=self.ranks,
            shapes=_shapes(payload),
            outputs=_shapes(outputs) if inputs and self.operation.results_first else (),
            dtype=str(payload[0].dtype).removeprefix("torch.") if payload else "",
            bytes=sum(tensor.nbytes for tensor in payload),
            root=self._root,
            peer=self._peer,
            tag=self._tag,
            reduce_op=self._reduce_op,
            splits=self._splits,
            number=number,
            sequence=sequence,
            asynchronous=self._asynchronous(called),
            called=called,
            line=line,
            launched=launched,
        )

    def _asynchronous(self, called: str) -> bool:
        """Whether the caller wants a handle: collectives say so in their options, messages by their function alone."""
        if self.operation.name in POINT_TO_POINT:
            return called not in _BLOCKING
        return bool(getattr(self._options, "asyncOp", not self.blocks))

    @cached_property
    def _options(self) -> Any:
        """The options object among the arguments; None for a call that names the options one by one."""
        return next((found for found in self.given if type(found).__name__.endswith("Options")), None)

    @property
    def _root(self) -> int | None:
        if self.operation.name not in _ROOTED:
            return None
        named = next((found for found in self.given if isinstance(found, int)), 0)
        return self.ranks[getattr(self._options, "rootRank", named)]

    @property
    def _peer(self) -> int | None:
        return self.ranks[self.given[1]] if self.method in {"send", "recv"} else None

    @property
    def _tag(self) -> int:
        return int(self.given[-1]) if self.operation.name in POINT_TO_POINT else 0

    @property
    def _reduce_op(self) -> str:
        if not self.operation.name.startswith((*_REDUCING, "reduce_scatter")):
            return ""
        named = next((found for found in self.given if isinstance(found, dist.ReduceOp)), dist.ReduceOp.SUM)
        return _name(getattr(self._options, "reduceOp", named))

    @property
    def _splits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.operation.name != "all_to_all_single":
            return (), ()
        wanted, given = self.given[2:4]
        return tuple(given), tuple(wanted)


def tensors_in(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found for tensor in tensors_in(part)] if isinstance(found, list | tuple) else []


def _shapes(tensors: list[torch.Tensor]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


@cache
def _names() -> dict[Any, str]:
    """Return what the reductions are called."""
    kinds = dist.ReduceOp.RedOpType
    return {value: name for name, value in kinds.__members__.items()}


def _name(reduce_op: Any) -> str:
    """Return "SUM" and the like."""
    return _names().get(getattr(reduce_op, "op", reduce_op), str(reduce_op))
