"""The handle of an operation that is under way."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.futures import foresee_wait, remember
from pytest_ddp.observed.recording.record import Record

_NO_TIMEOUT = timedelta(0)  # means the same to torch


class ObservedWork(Work):
    """Delegates to the real handle, and notes who waits for it and when it is over."""

    def __init__(self, real: Any, entries: Sequence[Entry], record: Record) -> None:
        super().__init__()
        self._real = real
        self._entries = entries
        self._record = record

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until it is over; on CUDA, until the current stream waits for it."""
        with self._record.waiting(self._entries, timeout or None):
            return bool(self._real.wait(timeout))

    def synchronize(self) -> None:
        """Let the current stream wait for it."""
        with self._record.waiting(self._entries):
            self._real.synchronize()

    def block_current_stream(self) -> None:
        """Let the current stream wait for it."""
        self._real.block_current_stream()

    def is_completed(self) -> bool:
        """Whether it is over."""
        completed = bool(self._real.is_completed())
        if completed:
            self._record.completed(self._entries)
        return completed

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the real future: C++ code can only wait for one of those."""
        future: torch.futures.Future[Any] = self._real.get_future()
        remember(future, self._entries)
        self._record.expect(future, self._entries)
        foresee_wait(self._record, future, self._entries)
        return future

    def result(self) -> Any:
        """Return the tensors that it filled."""
        return self._real.result()

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return bool(self._real.is_success())

    def exception(self) -> Any:
        """Return what went wrong."""
        return self._real.exception()

    def source_rank(self) -> int:
        """Return the rank (in the group) that a receive from anybody got its data from."""
        return int(self._real.source_rank())

    def _source_rank(self) -> int:
        return int(self._real._source_rank())  # noqa: SLF001  as torch.distributed.recv calls it

    def get_future_result(self) -> Any:
        """Return the future of how it went."""
        return self._real.get_future_result()

    def _get_duration(self) -> float:
        return float(self._real._get_duration())  # noqa: SLF001  torch's own name

    def _get_op_type(self) -> Any:
        return self._real._get_op_type()  # noqa: SLF001  likewise
