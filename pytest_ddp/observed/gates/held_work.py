"""The handle of an operation whose results a gate keeps back."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import Work

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.gates.shadow_tensors import ShadowTensors
from pytest_ddp.observed.recording.futures import taken_by_cpp

_NO_TIMEOUT = timedelta(0)  # means the same to torch
_CALLER = 2  # frames below us, where `ObservedWork` is one


class Keeper(Protocol):
    """Decides when operations complete: a gate."""

    def release(self, work: "HeldWork", wait: Callable[[], Any], timeout: timedelta | None = None) -> None:
        """Let an operation complete, now that somebody waits for it; `wait` waits for the real one, so long at most."""

    def poll(self, work: "HeldWork") -> bool:
        """Say whether an operation is over."""

    def hold(self, future: "torch.futures.Future[Any]", work: "HeldWork") -> "torch.futures.Future[Any]":
        """Let a future complete when its operation may; return it."""


class HeldWork(Work):
    """Stands in for the real handle; the operation is over for its owner only when the gate has let it complete.

    Attributes:
        entries: the operations; several where they were coalesced.
        landings: their results.
        real: the real handle; None for an operation that is coalesced with others.
        number: what the schedule calls it.
        landed: whether its results have reached their owner.
    """

    def __init__(
        self, real: Any, entries: Sequence[Entry], landings: Sequence[ShadowTensors], number: int, gate: Keeper
    ) -> None:
        super().__init__()
        self.real, self.entries, self.landings, self.number = real, entries, landings, number
        self.landed = False
        self._gate: Keeper | None = gate
        self._future: torch.futures.Future[Any] | None = None
        self._error: Exception | None = None
        self._told = False

    @property
    def gate(self) -> Keeper:
        """The gate that holds it; raises UsageError when the test is over."""
        if self._gate is None:
            raise UsageError(f"{self.entries[0]} belongs to a test that is over, and so is its process group")
        return self._gate

    def abandon(self) -> None:
        """Let go of the real operation, now that its test is over."""
        self.real = self._future = self._gate = self._error = None
        self.landings = ()

    @property
    def has_followers(self) -> bool:
        """Whether somebody has a future of it, which may start something when it completes."""
        return self._future is not None

    def complete(self, wait: Callable[[], Any]) -> None:
        """Wait for the real operation, let the results land, and let those go on who follow."""
        try:
            wait()
        except Exception as error:
            self._error = error
            self._tell_followers()
            raise
        if self.landed:  # what its owner has made of the results since is not undone
            return
        self.landed = True
        for landing in self.landings:
            landing.land()
        self._tell_followers()

    def _tell_followers(self) -> None:
        """Complete the future, if somebody has it, once."""
        if self._future is None or self._told:
            return
        self._told = True
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._of_owner(self.real.get_future().wait()))

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Let it complete, after everything that the schedule puts ahead of it."""
        self.gate.release(self, lambda: self.real.wait(timeout), timeout or None)
        return True

    def synchronize(self) -> None:
        """Do the same."""
        self.gate.release(self, self.real.synchronize)

    def block_current_stream(self) -> None:
        """Do the same."""
        self.gate.release(self, self.real.block_current_stream)

    def is_completed(self) -> bool:
        """Whether it is over; asking lets one operation complete, if one can and the schedule allows any."""
        return self.gate.poll(self)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that completes when the gate lets it.

        C++ code gets the real one, whose results are the copies: it can read no other, and is known to wait for it
        only when all gradients are computed.
        """
        real: torch.futures.Future[Any] = self.real.get_future()
        if self._future is None and not taken_by_cpp(_CALLER):
            devices = {device for landing in self.landings for device in landing.devices if device.type != "cpu"}
            self._future = torch.futures.Future(devices=sorted(devices, key=str))
        if self.landed or self._error is not None:
            self._tell_followers()
        return self.gate.hold(real if self._future is None else self._future, self)

    def result(self) -> Any:
        """Return the tensors that it filled, or will."""
        return self._of_owner(self.real.result())

    def _of_owner(self, results: Any) -> Any:
        for landing in self.landings:
            results = landing.of_caller(results)
        return results

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return bool(self.real.is_success())

    def exception(self) -> Any:
        """Return what went wrong."""
        return self.real.exception()

    def source_rank(self) -> int:
        """Return the rank (in the group) that a receive from anybody got its data from."""
        return int(self.real.source_rank())

    def _source_rank(self) -> int:
        return int(self.real._source_rank())  # noqa: SLF001  torch's own name

    def get_future_result(self) -> Any:
        """Return the future of how it went."""
        return self.real.get_future_result()

    def _get_duration(self) -> float:
        return float(self.real._get_duration())  # noqa: SLF001  torch's own name

    def _get_op_type(self) -> Any:
        return self.real._get_op_type()  # noqa: SLF001  likewise
