"""One call of a method of a process group: what it is given, and how to make it.

Reading a call is on the path of every operation, where the caches are cold: it is written to do little.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.events import Entry, Moment, Shapes
from pytest_ddp.operations.table import METHODS, SEND
from pytest_ddp.torch_internals import OPTION_TYPES, premul_factor

BLOCKING = ("send", "recv", "send_object_list", "recv_object_list")
_REDUCTIONS = {value: name for name, value in dist.ReduceOp.RedOpType.__members__.items()}


@dataclass(eq=False)
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

    group: str
    ranks: tuple[int, ...]
    real: dist.ProcessGroup
    method: str
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __post_init__(self) -> None:
        self.operation = METHODS[self.method]
        self.given = (*self.args, *self.keywords.values()) if self.keywords else self.args

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
        return [] if self.operation.name == SEND else tensors_in(self.given[:1])

    @property
    def timeout(self) -> timedelta | None:
        """How long a call that blocks waits at most."""
        return next((found for found in self.given if isinstance(found, timedelta)), None)

    @property
    def stream(self) -> Hashable:
        """What is counted together in the group: its collectives, or the messages to or from one peer with one tag."""
        return (self.operation.name, self.peer, self.tag) if self.operation.point_to_point else None

    @property
    def peer(self) -> int | None:
        """The global rank of the other side of a message; None for any, and for collectives."""
        is_from_any = self.method == "recv_anysource"
        return self._global(self.given[1]) if self.operation.point_to_point and not is_from_any else None

    @property
    def tag(self) -> int:
        """The tag of a message."""
        return int(self.given[-1]) if self.operation.point_to_point else 0

    @property
    def root(self) -> int | None:
        """The global rank that a rooted collective starts from or ends at."""
        if not self.operation.rooted:
            return None
        named = next((found for found in self.given if isinstance(found, int)), 0)
        return self._global(getattr(self._options, "rootRank", named))

    @property
    def asynchronous(self) -> bool:
        """Whether the caller of a collective wants a handle; messages do not say."""
        return bool(getattr(self._options, "asyncOp", not self.operation.blocks))

    def entry(self, number: int, sequence: int, launched: Moment, line: str, called: str) -> Entry:
        """Return what the record says of the call."""
        operation, inputs = self.operation, self.inputs
        payload = inputs or self.outputs
        return Entry(
            op=operation.name,
            group=self.group,
            ranks=self.ranks,
            shapes=_shapes(payload),
            outputs=_shapes(self.outputs) if inputs and operation.results_first else (),
            dtype=str(payload[0].dtype).removeprefix("torch.") if payload else "",
            bytes=sum([tensor.numel() * tensor.element_size() for tensor in payload]),
            root=self.root,
            peer=self.peer,
            tag=self.tag,
            reduce_op=self.reduction if operation.reduces else "",
            splits=(tuple(self.given[3]), tuple(self.given[2])) if operation.splits else ((), ()),
            number=number,
            sequence=sequence,
            asynchronous=called not in BLOCKING if operation.point_to_point else self.asynchronous,
            called=called,
            line=line,
            launched=launched,
        )

    @property
    def _options(self) -> Any:
        return next((found for found in self.given if type(found) in OPTION_TYPES), None)

    @property
    def reduction(self) -> str:
        """The reduction, as `ReduceOp` names it."""
        found = self._reduce_op
        return _REDUCTIONS[getattr(found, "op", found)]

    @property
    def factor(self) -> Any:
        """What PREMUL_SUM multiplies the tensors of this rank with: a number or a tensor; None for other reductions."""
        return premul_factor(self._reduce_op)

    @property
    def _reduce_op(self) -> Any:
        options = self._options
        if options is None:
            options = next((found for found in self.given if isinstance(found, dist.ReduceOp)), dist.ReduceOp.SUM)
        return getattr(options, "reduceOp", options)

    def _global(self, rank: int) -> int:
        """Return the global rank of a rank of the group; what is no rank is left for the real group to refuse."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else rank


def tensors_in(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    tensors: list[torch.Tensor] = []
    if isinstance(found, list | tuple):
        for part in found:
            if isinstance(part, torch.Tensor):
                tensors.append(part)
            else:
                tensors += tensors_in(part)
    return tensors


def _shapes(tensors: list[torch.Tensor]) -> Shapes:
    return tuple([tuple(tensor.shape) for tensor in tensors])
