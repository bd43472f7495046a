"""One operation of a process group as a rank saw it: plain values, without torch."""

from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddp.operations.fingerprint import peer_text
from pytest_ddp.operations.table import POINT_TO_POINT

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Moment:
    """A moment on a rank's clock, which counts events from 1, and where autograd was then.

    Attributes:
        time: the clock.
        backward: the number (from 1) of the innermost backward that was running, None outside of any.
        ready: how many gradients of parameters that backward had computed.
        expected: how many it was to compute in all.
    """

    time: int
    backward: int | None = None
    ready: int = 0
    expected: int = 0


@dataclass(frozen=True)
class Entry:
    """One operation that this rank entered.

    Attributes:
        op: the operation, named as in torch.distributed: "all_reduce", "send", ...
        group: the name of its process group.
        ranks: the global ranks of the group, in its order.
        shapes: of the tensors that this rank passed in; of its results if it passed none in, as in recv.
        outputs: the shapes of the tensors that this rank wanted, where they are others than those given.
        dtype: of the first tensor, such as "float32"; empty without tensors.
        bytes: of the tensors of `shapes` together; sparse ones count as if they were dense.
        root: the global rank that a rooted operation starts from or ends at.
        peer: the global rank that a point-to-point operation is with; None for any.
        tag: of a point-to-point operation.
        reduce_op: "SUM", "AVG", "MAX", ... where something is reduced.
        splits: how all_to_all_single splits the first dimension, (given, wanted); empty means evenly.
        number: tells it from every other operation of this rank.
        sequence: counts the collectives of its group from 1, or the sends or receives with one peer and tag.
        asynchronous: whether the caller got a handle to wait for.
        called: the function of torch that was called; "backward" means that torch's own C++ code issued it.
        line: "FILE:LINE" of the caller outside torch, or of the call of backward that ran it; empty without one.
        launched: when it was entered.
        waited: when the program first waited for it; None if it has not yet. If C++ code waits for a future, this is
            seen in torch's own DDP only. A backend that gives no handle (NCCL, not asynchronous) has waited when it
            returns.
        completed: when this rank first saw that it was complete: a wait returned, or its future was done when the next
            backward returned or the record was read.
    """

    op: str
    group: str
    ranks: tuple[int, ...]
    shapes: Shapes = ()
    outputs: Shapes = ()
    dtype: str = ""
    bytes: int = 0
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    reduce_op: str = ""
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    number: int = 0
    sequence: int = 0
    asynchronous: bool = False
    called: str = ""
    line: str = ""
    launched: Moment = Moment(0)
    waited: Moment | None = None
    completed: Moment | None = None

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive, in which only two ranks take part."""
        return self.op in POINT_TO_POINT

    def __str__(self) -> str:
        shapes = " + ".join(str(list(shape)) for shape in self.shapes)
        peer = f" {peer_text(self.op, self.peer)}" if self.peer is not None else ""
        payload = f" {self.dtype}{shapes}" if self.shapes else ""
        return f"{self.op} #{self.sequence}{peer}{payload}{f' ({self.line})' if self.line else ''}"


# What happens on an observed rank, in the order of its clock.


@dataclass(frozen=True)
class CollectiveLaunched:
    """The operation `number` (`Entry.number`) was entered."""

    time: int
    number: int


@dataclass(frozen=True)
class CollectiveWaited:
    """Somebody began to wait for the operation `number`, for the first time; `line` says where inside backward."""

    time: int
    number: int
    line: str = ""


@dataclass(frozen=True)
class CollectiveCompleted:
    """It became known that the operation `number` is over."""

    time: int
    number: int


@dataclass(frozen=True)
class BackwardBegan:
    """The backward pass `backward` (from 1) began at `line`; it will compute `expected` gradients of parameters."""

    time: int
    backward: int
    line: str
    expected: int


@dataclass(frozen=True)
class GradientReady:
    """A parameter's gradient is about to be added to its `.grad`; `parameter` is its name, or else its shape."""

    time: int
    backward: int
    parameter: str


@dataclass(frozen=True)
class BackwardReturned:
    """The backward pass `backward` returned, or raised."""

    time: int
    backward: int


Event: TypeAlias = (
    CollectiveLaunched | CollectiveWaited | CollectiveCompleted | BackwardBegan | GradientReady | BackwardReturned
)
