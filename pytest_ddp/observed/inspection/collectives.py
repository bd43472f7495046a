"""The value of `ddp.collectives`: the record of the running test, as the test reads it."""

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
    """The operations that this rank has entered since the test and its setup began, in order."""

    def __init__(self, record: Record) -> None:
        super().__init__(record, (), "")

    @property
    def entries(self) -> list[Entry]:
        """All operations so far."""
        return self._record.entries

    @property
    def events(self) -> tuple[Event, ...]:
        """All launches, first waits, completions, gradients and backward passes, in the order of the clock."""
        return tuple(self._record.events)

    def clear(self) -> None:
        """Forget the operations and events so far."""
        self._record.clear()

    def name(self, model: nn.Module) -> None:
        """Use the model's parameter names in events."""
        for name, parameter in model.named_parameters():
            self._record.names[parameter] = name

    @contextmanager
    def capture(self) -> Iterator[Selection]:
        """Yield a selection that, after the block, contains the operations that were entered in it."""
        before = {entry.number for entry in self.entries}
        block = Selection(self._record, (), "in the block")
        try:
            yield block
        finally:
            block.chosen = [entry for entry in self.entries if entry.number not in before]

    @property
    def unawaited(self) -> Selection:
        """The operations that returned a handle, were never waited for, and are not known to be complete.

        Under a gate, their results were never written to the tensors.
        """
        found = [e for e in self.entries if e.asynchronous and e.waited is None and e.completed is None]
        return Selection(self._record, found, "never waited for")

    @property
    def overlap(self) -> list[BackwardOverlap]:
        """For each backward pass, whether communication overlapped its computation."""
        return overlap(self._record.entries, self._record.events)

    @contextmanager
    def gate(self, schedule: Schedule) -> Iterator[None]:
        """Complete the operations that are issued in this block when the schedule says so.

        The tensors that they fill hold poison (NaN, the least integer) until they are waited for, in the block or
        after it.

        Raises:
            UsageError: if `schedule` is not a Schedule.
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
        """Return the operations and events so far; `str()` of the result is a table."""
        return Timeline(self.entries, self.events)

    def export_trace(self, path: str | os.PathLike[str]) -> None:
        """Write this rank's record to a file that Perfetto and chrome://tracing open.

        `merge_traces` combines the files of all ranks.
        """
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
        trace = Trace(rank, self.entries, self.events, self._record.clock.nanoseconds)
        write_trace(path, trace.trace_events())
