"""What `ddp.collectives` is: the record of the test at hand, as its test reads it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

from torch import nn

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.events import Event
from pytest_ddp.observed.gate import ScheduledGate
from pytest_ddp.observed.overlap import BackwardOverlap, overlap
from pytest_ddp.observed.record import Record
from pytest_ddp.observed.schedule import Schedule


class Collectives(Sequence[Entry]):
    """The operations that this rank has entered since the test began, its setup included, in order."""

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that happened, in the order of the clock: launches, waits, completions, gradients, backwards."""
        return tuple(self._record.events)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._record.clear()

    def name(self, model: nn.Module) -> None:
        """Let events call the model's parameters by their names."""
        self._record.names.learn(model.named_parameters())

    @property
    def unawaited(self) -> list[Entry]:
        """The operations of which somebody got a handle that nobody has waited for, and that are not known to be over.

        Under a gate the results of these have never landed.
        """
        return [e for e in self._record.entries if e.asynchronous and e.waited is None and e.completed is None]

    @property
    def overlap(self) -> list[BackwardOverlap]:
        """For each backward pass, whether communication went on while it computed."""
        return overlap(self._record.entries, self._record.events)

    @contextmanager
    def gate(self, schedule: Schedule) -> Iterator[None]:
        """Let the operations that are issued in this block complete as the schedule says.

        The tensors that they fill hold poison (NaN, the least integer) until somebody has waited for them. Handles
        outlive the block: what nobody waits for in it may be waited for later.

        Raises:
            UsageError: for what is no schedule.
        """
        if not isinstance(schedule, Schedule):
            raise UsageError(
                f"a gate takes a schedule, such as pytest_ddp.observed.HoldUntilBackward(); got {schedule!r}"
            )
        outer, self._record.gate = self._record.gate, (inner := ScheduledGate(schedule, self._record))
        try:
            yield
        finally:
            if self._record.gate is inner:
                self._record.gate = outer

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._record.entries[index]

    def __len__(self) -> int:
        return len(self._record.entries)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {entry}" for entry in self)
        return f"<{len(self)} operations{':' if lines else ''}{lines}>"
