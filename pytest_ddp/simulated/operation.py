"""The operations of simulated ranks: what each rank launched, and which launches become one operation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from pytest_ddp.observed.events import Entry, Moment
from pytest_ddp.observed.fingerprint import fingerprint_of
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.results import Writes, message, values
from pytest_ddp.simulated.schedule import Option, Range
from pytest_ddp.torch_internals import no_python_dispatch

Key = tuple[Any, ...]


@dataclass(eq=False)
class Launch:
    """What one rank launched.

    Attributes:
        rank: the global rank.
        call: the method of the group that it called, with its arguments.
        key: of the operation; the launches of other ranks with this key belong to it.
        sequence: counts the collectives of the group from 1, or the messages between two ranks with one tag.
        line, called: "FILE:LINE" of the caller, and the function of torch that it called.
        ready: whether all ranks that take part have launched it.
        landed: whether the results are in the tensors of this rank.
        waited: whether this rank has waited for it, or has seen that it is complete.
        source: the rank in the group that a received message came from.
        calls_back: whether a function of the program in Python runs when the results land.
        partner: of a send, the receive that it matched; of a receive, the send.
        error: what torch raised when it computed the results.
    """

    rank: int
    call: Call
    key: Key
    sequence: int
    line: str = ""
    called: str = ""
    ready: bool = False
    landed: bool = False
    waited: bool = False
    calls_back: bool = False
    partner: "Launch | None" = field(default=None, repr=False)
    source: int = -1
    error: Exception | None = None
    writes: Writes = field(default_factory=list)
    when_landed: list[Callable[[], None]] = field(default_factory=list)
    land_now: Callable[["Launch"], None] = field(default=lambda _: None, repr=False)

    @cached_property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it takes."""
        return self.call.inputs

    @cached_property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that it fills."""
        return self.call.outputs

    @property
    def name(self) -> str:
        """The operation with its number, such as "all_reduce#7"."""
        return f"{self.call.operation.name}#{self.sequence}"

    @property
    def touches(self) -> tuple[Range, ...]:
        """The memory that it reads or writes on this rank."""
        tensors = {id(one): one for one in (*self.inputs, *self.outputs) if one.layout == torch.strided}
        return tuple(map(memory_range, tensors.values()))

    @property
    def peers(self) -> tuple[int, ...]:
        """The global ranks that take part."""
        peer = self.call.peer
        return self.call.ranks if peer is None else tuple(sorted((self.rank, peer)))

    def option(self, kind: Literal["run", "land", "leave"] = "land") -> Option:
        """Describe what may happen next with it."""
        return Option(kind, self.rank, self.name, self.call.group, self.peers, self.touches)

    def land(self) -> None:
        """Write the results into the tensors of this rank."""
        self.land_now(self)

    def fingerprint(self) -> Fingerprint:
        """Return what other ranks compare."""
        entry: Entry = self.call.entry(0, self.sequence, Moment(0), self.line, self.called)
        return fingerprint_of(entry, self.rank)._replace(default=self.call.real.group_desc == "default_pg")

    @property
    def contents(self) -> tuple[Any, ...]:
        """Equal where a send and a receive match."""
        return tuple([(one.dtype, one.numel()) for one in self.inputs or self.outputs])

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal where two launches of a collective certainly match."""
        call = self.call
        given = tuple(
            [(one.shape, one.dtype, one.stride() if one.layout == torch.strided else ()) for one in self.inputs]
        )
        return call.method, given, call.root, call.reduction if call.operation.reduces else ""


def memory_range(tensor: torch.Tensor) -> Range:
    """Return the first byte of a dense tensor, and the byte after its last."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.numel() * tensor.element_size()
    last = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def compute_collective(launches: list[Launch], order: Reduction) -> None:
    """Compute the results of a collective that all ranks have launched."""
    with torch.no_grad(), no_python_dispatch():
        try:
            found = values([one.call for one in launches], order)
        except (RuntimeError, ValueError, TypeError) as error:  # as on real ranks, all of them get it
            for launch in launches:
                launch.error = error
            return
        for launch, writes in zip(launches, found, strict=True):
            launch.writes = writes


def compute_message(sent: Launch, received: Launch) -> None:
    """Compute what a message writes."""
    with torch.no_grad(), no_python_dispatch():
        received.writes = message(sent.call, received.call)


def write(writes: Writes) -> None:
    """Write values into tensors; like gloo, without a trace for autograd."""
    if not writes:
        return
    with torch.no_grad(), no_python_dispatch():
        if any(target.layout != torch.strided for target, _ in writes):
            for target, value in writes:
                target.copy_(value.coalesce())
            return
        targets = [target.data for target, _ in writes]
        sources = [value if value.shape == one.shape else value.reshape(one.shape) for one, value in writes]
        torch._foreach_copy_(targets, sources)  # one call for 1,024 tensors
