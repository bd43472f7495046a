"""What `ddp.collectives` is: the record of the test at hand, as its test reads it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry, Event
from pytest_ddp.observed.gates.gate import ScheduledGate
from pytest_ddp.observed.gates.schedule import Schedule
from pytest_ddp.observed.inspection.chrome_trace import Trace, write_trace
from pytest_ddp.observed.inspection.overlap import BackwardOverlap, overlap
from pytest_ddp.observed.inspection.selection import Selection
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.observed.timeline import Timeline


class Collectives(Selection):
    """The operations that this rank has entered since the test began, its setup included, in order."""

    def __init__(self, record: Record) -> None:
        super().__init__(record, (), "")

    @property
    def entries(self) -> list[Entry]:
        """All operations so far."""
        return self._record.entries

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

    @contextmanager
    def capture(self) -> Iterator[Selection]:
        """Give a selection which, at the end of the block, holds the operations that were entered in it."""
        before = {entry.number for entry in self.entries}
        block = Selection(self._record, (), "in the block")
        try:
            yield block
        finally:
            block.hold(entry for entry in self.entries if entry.number not in before)

    @property
    def unawaited(self) -> Selection:
        """The operations of which somebody got a handle that nobody has waited for, and that are not known to be over.

        Under a gate the results of these have never landed.
        """
        found = [e for e in self.entries if e.asynchronous and e.waited is None and e.completed is None]
        return Selection(self._record, found, "that nobody waited for")

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

    def timeline(self) -> Timeline:
        """Return what happened on this rank so far; `str()` of it is a table."""
        return Timeline(self.entries, self.events)

    def export_trace(self, path: str | os.PathLike[str]) -> None:
        """Write what happened on this rank to a file that Perfetto and chrome://tracing show.

        `merge_traces` makes one file of those of all ranks.
        """
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
        trace = Trace(rank, self.entries, self.events, self._record.clock.nanoseconds)
        write_trace(path, trace.traced())
