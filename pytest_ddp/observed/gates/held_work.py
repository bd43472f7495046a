"""The handle of an operation whose results a gate holds back."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.gates.shadow_tensors import ShadowTensors
from pytest_ddp.observed.recording.work import NO_TIMEOUT, DelegatingWork, called_from_cpp

if TYPE_CHECKING:
    from pytest_ddp.observed.gates.gate import ScheduledGate

_CALLER = 2  # the caller of `ObservedWork.get_future` is so many frames above `HeldWork.get_future`


class HeldWork(DelegatingWork):
    """Replaces the real handle; for the caller, the operation is complete only when the gate has released it.

    Attributes:
        real: the real handle; None for an operation that is coalesced with others.
        entries: the operations, several if they are coalesced.
        shadows: the tensors that they fill.
        number: the operation's number in the schedule.
        future: the future that the program got, if it asked for one.
        delivered: whether the results are in the caller's tensors.
    """

    def __init__(
        self, real: Any, entries: Sequence[Entry], shadows: Sequence[ShadowTensors], number: int, gate: "ScheduledGate"
    ) -> None:
        super().__init__(real)
        self.entries, self.shadows, self.number = entries, shadows, number
        self.delivered = False
        self._gate: ScheduledGate | None = gate
        self.future: torch.futures.Future[Any] | None = None
        self._future_set = False
        self._error: Exception | None = None

    @property
    def gate(self) -> "ScheduledGate":
        """The gate that holds the operation; raises UsageError when the test is over."""
        if self._gate is None:
            raise UsageError(f"{self.entries[0]} belongs to a test that is over, and so is its process group")
        return self._gate

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation, and those ahead of it in the schedule, are complete."""
        self.gate.release(self, lambda: self.real.wait(timeout), timeout or None)
        return True

    def synchronize(self) -> None:
        """Make the current CUDA stream wait for the operation, after those ahead of it."""
        self.gate.release(self, self.real.synchronize)

    def block_current_stream(self) -> None:
        """Make the current CUDA stream wait for the operation, after those ahead of it."""
        self.gate.release(self, self.real.block_current_stream)

    def is_completed(self) -> bool:
        """Whether the operation is complete; each call lets one operation complete, if the schedule allows it."""
        return self.gate.poll(self)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that completes when the gate releases the operation.

        C++ code can use only the real future, so it gets that one, with the copies as results. The C++ code of DDP
        waits for it only when all gradients are computed.
        """
        real: torch.futures.Future[Any] = self.real.get_future()
        if self.future is None and not called_from_cpp(_CALLER):
            devices = {device for shadow in self.shadows for device in shadow.devices if device.type != "cpu"}
            self.future = torch.futures.Future(devices=sorted(devices, key=str))
        if self.delivered or self._error is not None:
            self._set_future()
        future = real if self.future is None else self.future
        if not self.delivered:
            self.gate.futures[future] = self
        return future

    def result(self) -> Any:
        """Return the caller's tensors that the operation fills."""
        return self._with_caller_tensors(self.real.result())

    def complete(self, wait: Callable[[], Any]) -> None:
        """Wait for the real operation, write its results to the caller's tensors, and set the future."""
        try:
            wait()
        except Exception as error:
            self._error = error
            self._set_future()
            raise
        if self.delivered:  # the caller may have changed the tensors since
            return
        self.delivered = True
        for shadow in self.shadows:
            shadow.write_back()
        self._set_future()

    def drop(self) -> None:
        """Drop every reference to the real operation, because its test is over."""
        self.real = self.future = self._gate = self._error = None
        self.shadows = ()

    def _set_future(self) -> None:
        if self.future is None or self._future_set:
            return
        self._future_set = True
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._with_caller_tensors(self.real.get_future().wait()))

    def _with_caller_tensors(self, results: Any) -> Any:
        for shadow in self.shadows:
            results = shadow.with_caller_tensors(results)
        return results
