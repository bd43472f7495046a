"""Handles of operations that are in flight: one base class that delegates to a real handle, and the observed handle."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.futures import record_reducer_wait, register_future
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.torch_internals import PrivateWork

NO_TIMEOUT = timedelta(0)  # as in torch


class DelegatingWork(PrivateWork):
    """Answers every question about an operation as the real handle does.

    Attributes:
        real: the real handle.
    """

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real

    def block_current_stream(self) -> None:
        """Make the current CUDA stream wait for the operation."""
        self.real.block_current_stream()

    def result(self) -> Any:
        """Return the tensors that the operation filled."""
        return self.real.result()

    def is_success(self) -> bool:
        """Whether the operation completed without an error."""
        return bool(self.real.is_success())

    def exception(self) -> Any:
        """Return the error of the operation."""
        return self.real.exception()

    def source_rank(self) -> int:
        """Return the rank, counted in the group, that sent the data of a receive from any source."""
        return int(self.real.source_rank())

    def get_future_result(self) -> Any:
        """Return the future of the operation's `WorkResult`."""
        return self.real.get_future_result()


class ObservedWork(DelegatingWork):
    """Records the waits for an operation and its completion."""

    def __init__(self, real: Any, entries: Sequence[Entry], record: Record) -> None:
        super().__init__(real)
        self._entries = entries
        self._record = record

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation is complete; on CUDA, make the current stream wait."""
        with self._record.waiting(self._entries, timeout or None):
            return bool(self.real.wait(timeout))

    def synchronize(self) -> None:
        """Make the current CUDA stream wait for the operation."""
        with self._record.waiting(self._entries):
            self.real.synchronize()

    def is_completed(self) -> bool:
        """Whether the operation is complete."""
        completed = bool(self.real.is_completed())
        if completed:
            self._record.mark_completed(self._entries)
        return completed

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the real future, because C++ code cannot wait for another kind."""
        future: torch.futures.Future[Any] = self.real.get_future()
        register_future(future, self._entries)
        self._record.track_future(future, self._entries)
        record_reducer_wait(self._record, future, self._entries)
        return future
