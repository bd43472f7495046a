"""One call of a method of a process group: what it is given, and how to make it."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.entry import Shapes, Signature
from pytest_ddp.observed.operations import OPERATIONS, Operation

_ROOTED = ("broadcast", "reduce", "gather", "gather_into_tensor", "scatter")
_REDUCING = ("reduce", "all_reduce", "all_reduce_coalesced")


@dataclass
class Call:
    """A call `real.method(*args, **keywords)` that is about to be made."""

    real: dist.ProcessGroup
    method: str
    args: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def issue(self) -> Any:
        """Make the call; return the Work of the real group, or what else it returns."""
        return getattr(self.real, self.method)(*self.args, **self.keywords)

    @property
    def operation(self) -> Operation:
        """What the method does."""
        return OPERATIONS[self.method]

    @property
    def given(self) -> tuple[Any, ...]:
        """The arguments, by position or not."""
        return (*self.args, *self.keywords.values())

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it takes."""
        if self.method.startswith("recv"):
            return []
        return tensors_in(self.given[1:2] if self.operation.results_first else self.given[:1])

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that it fills; those that it takes where it works in place."""
        return [] if self.operation.name == "send" else tensors_in(self.given[:1])

    @property
    def asynchronous(self) -> bool | None:
        """Whether the caller said that it wants a handle; None for point-to-point calls, which do not say."""
        if self.operation.name in {"send", "recv"}:
            return None
        return bool(getattr(self._options, "asyncOp", not self.blocks))

    @property
    def blocks(self) -> bool:
        """Whether the call itself waits for the other ranks, rather than giving a handle to wait for."""
        return self.method == "monitored_barrier"

    @property
    def timeout(self) -> timedelta | None:
        """How long a call that blocks waits at most."""
        return next((found for found in self.given if isinstance(found, timedelta)), None)

    def signature(self, group: str, ranks: tuple[int, ...]) -> Signature:
        """Return what is asked for, in a group of that name and of these global ranks."""
        inputs, outputs = self.inputs, self.outputs
        payload = inputs or outputs
        return Signature(
            op=self.operation.name,
            group=group,
            ranks=ranks,
            shapes=_shapes(payload),
            outputs=_shapes(outputs) if inputs and self.operation.results_first else (),
            dtype=str(payload[0].dtype).removeprefix("torch.") if payload else "",
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in payload),
            root=self._root(ranks),
            peer=self._peer(ranks),
            tag=self._tag(),
            reduce_op=self._reduce_op(),
            splits=self._splits(),
        )

    @property
    def _options(self) -> Any:
        """The options object among the arguments; None for a call that names the options one by one."""
        return next((found for found in self.given if type(found).__name__.endswith("Options")), None)

    def _root(self, ranks: tuple[int, ...]) -> int | None:
        if self.operation.name not in _ROOTED:
            return None
        named = next((found for found in self.given if isinstance(found, int)), 0)
        return ranks[getattr(self._options, "rootRank", named)]

    def _peer(self, ranks: tuple[int, ...]) -> int | None:
        return ranks[self.given[1]] if self.method in {"send", "recv"} else None

    def _tag(self) -> int:
        return int(self.given[-1]) if self.operation.name in {"send", "recv"} else 0

    def _reduce_op(self) -> str:
        if not self.operation.name.startswith((*_REDUCING, "reduce_scatter")):
            return ""
        named = next((found for found in self.given if isinstance(found, dist.ReduceOp)), dist.ReduceOp.SUM)
        return _name(getattr(self._options, "reduceOp", named))

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


def _name(reduce_op: Any) -> str:
    """Return "SUM" and the like; torch prints it as RedOpType.SUM or <RedOpType.SUM: 0>."""
    return str(getattr(reduce_op, "op", reduce_op)).strip("<>").partition(".")[2].partition(":")[0]
