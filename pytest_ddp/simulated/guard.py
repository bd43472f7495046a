"""Sees each operation of a rank on tensors, and reports those that touch memory which a collective in flight owns.

While a collective is in flight, nobody may read what it writes, or write what it reads or writes. Real ranks often get
away with it, because the collective is over in time; here it is reported at once, whatever the schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.simulated.operation import Launch, memory_range
from pytest_ddp.simulated.problems import Problem, UseBeforeWait, WriteInFlight
from pytest_ddp.simulated.schedule import Range
from pytest_ddp.torch_internals import add_first_mode, remove_mode, runs_backward, written_arguments

Stop = Callable[[Problem], None]


class BufferGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Watches the operations of one rank while any collective of it is in flight, or backward runs.

    Args:
        rank: the rank.
        stop: called with a problem; it raises.
    """

    def __init__(self, rank: int, stop: Stop) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._rank = rank
        self._stop = stop
        self._in_flight: dict[Launch, tuple[list[Range], list[Range]] | None] = {}
        self._paused = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._in_flight and not self._paused:
            self._check(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to call this mode through torch.compile's switch takes ten times as long as the mode itself

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what runs in this thread; operations may be in flight before and after."""
        if self._in_flight:
            add_first_mode(self)
        try:
            yield
        finally:
            remove_mode(self)

    @contextmanager
    def around_backward(self) -> Iterator[None]:
        """Watch a backward pass: modes that a hook adds are gone when the hook returns."""
        add_first_mode(self)
        try:
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        """Watch no longer, if nothing is in flight."""
        if not self._in_flight and not runs_backward():
            remove_mode(self)

    def launched(self, launch: Launch) -> None:
        """An operation is in flight from now on; report it if one that is in flight owns its tensors."""
        if self._in_flight:
            self._compare(launch.fingerprint, *memory_of(launch))
        self._in_flight[launch] = None  # its memory is looked up when it is asked for the first time
        add_first_mode(self)

    def waited(self, launch: Launch) -> None:
        """The rank has waited for an operation."""
        self._in_flight.pop(launch, None)
        self._rest()

    def forget(self) -> None:
        """No operation is in flight."""
        self._in_flight.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let callbacks of an operation's future use its results."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _check(self, func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        written = _written(func)
        if written is None:
            return
        reads: list[Range] = []
        writes: list[Range] = []
        for position, value in (*enumerate(args), *keywords.items()):
            _ranges(value, writes if position in written else reads)
        if reads or writes:
            self._compare(lambda: func, reads, writes)

    def _compare(self, who: Callable[[], Any], reads: Sequence[Range], writes: Sequence[Range]) -> None:
        for launch, known in self._in_flight.items():
            their_reads, their_writes = self._in_flight[launch] = known or memory_of(launch)
            if _overlap(writes, their_writes) or _overlap(writes, their_reads):
                self._report(WriteInFlight, f"{who()} writes", launch)
            if _overlap(reads, their_writes):
                self._report(UseBeforeWait, f"{who()} reads", launch)

    def _report(self, kind: type[Problem], does: str, launch: Launch) -> None:
        line, _ = caller()
        text = f"rank {self._rank}: {does} a tensor of {launch.fingerprint()}, for which it has not waited yet"
        self._stop(kind(text + (f"; at {line}" if line else ""), (self._rank,)))


def memory_of(launch: Launch) -> tuple[list[Range], list[Range]]:
    """Return the memory that an operation reads on its rank, and that it writes there."""
    call = launch.call
    is_source = call.operation.name == "broadcast" and call.root == launch.rank
    reads: list[Range] = []
    writes: list[Range] = []
    _ranges(launch.inputs, reads)
    if not is_source:
        _ranges(launch.outputs, writes)
    return reads, writes


def _ranges(value: Any, into: list[Range]) -> None:
    """Add the memory of the plain tensors in an argument."""
    if isinstance(value, torch.Tensor):
        inner = getattr(value, "_local_tensor", value)  # of a DTensor
        if type(inner) in _PLAIN and inner.layout == torch.strided and inner.numel():
            into.append(memory_range(inner))
    elif isinstance(value, list | tuple):
        for part in value:
            _ranges(part, into)


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(start < end and begin < stop for begin, end in some for start, stop in others)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
# These take a tensor for its shape, or change where it points to.
_WITHOUT_DATA = (
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_",
)
_METADATA = frozenset({"set_", "resize_", "is_same_size", "record_stream", "is_pinned", "sym_size", "sym_stride"})


@cache
def _written(func: Any) -> frozenset[int | str] | None:
    """Return which arguments an operation writes; None for views and operations that touch no data."""
    name = func.overloadpacket.__name__
    if func.namespace in {"c10d", "_c10d_functional"} or name in _METADATA or name.startswith(_WITHOUT_DATA):
        return None
    return written_arguments(func)
