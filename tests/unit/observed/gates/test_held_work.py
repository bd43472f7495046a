"""Handles that a gate holds, around fake real handles: errors, and operations coalesced as by NCCL."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from pytest_ddp.observed import Entry, InOrder, Moment
from pytest_ddp.observed.gates.gate import ScheduledGate
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.record import Record


class FakeWork:
    """A handle of an operation that fills its tensor with twos, or fails."""

    def __init__(self, tensors=(), error=None):
        self.tensors, self.error, self.waits = tensors, error, []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if self.error:
            raise self.error
        for tensor in self.tensors:
            tensor.fill_(2)
        return True

    def is_completed(self):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(list(self.tensors))
        return future


class FakeGroup:
    """A group that returns fake handles; no handles for coalesced operations."""

    def __init__(self, *, coalesces=False, error=None):
        self.coalesces, self.error, self.issued = coalesces, error, []

    def rank(self):
        return 0

    def allreduce(self, tensors, _):
        self.issued.append(FakeWork(tensors, self.error))
        return None if self.coalesces else self.issued[-1]


@pytest.fixture
def gate():
    return ScheduledGate(InOrder((2, 1)), Record())


def issue(gate, group, tensor, number=1):
    call = Call("0", (0, 1), group, method="allreduce", args=([tensor], SimpleNamespace()), keywords={})
    entry = Entry("all_reduce", "0", (0, 1), number=number, asynchronous=True, launched=Moment(number))
    return entry, gate.issue(entry, call)


def test_an_error_is_raised_by_wait_and_no_result_is_written(gate):
    _, work = issue(gate, FakeGroup(error=RuntimeError("peer left")), tensor := torch.ones(2))
    with pytest.raises(RuntimeError, match="peer left"):
        work.wait()
    assert tensor.isnan().all()


def test_an_error_reaches_the_future_and_not_the_wait_for_another_operation(gate):
    _, work = issue(gate, FakeGroup(), torch.ones(2))
    _, failing = issue(gate, FakeGroup(error=RuntimeError("peer left")), torch.ones(2), 2)
    future = failing.get_future()
    assert work.wait()
    with pytest.raises(RuntimeError, match="peer left"):
        future.wait()


def test_a_future_taken_after_completion_is_complete(gate):
    _, work = issue(gate, FakeGroup(), tensor := torch.ones(2))
    work.wait()
    assert work.get_future().value() == [tensor]
    _, failing = issue(gate, FakeGroup(error=RuntimeError("peer left")), torch.ones(2), 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="peer left"):
            failing.wait()
    with pytest.raises(RuntimeError, match="peer left"):
        failing.get_future().wait()


def test_the_timeout_reaches_the_real_handle(gate):
    _, work = issue(gate, group := FakeGroup(), torch.ones(2))
    work.wait(timedelta(seconds=7))
    assert group.issued[0].waits == [timedelta(seconds=7)]


def test_results_of_coalesced_operations_are_written_when_their_handle_is_waited_for(gate):
    group, tensors = FakeGroup(coalesces=True), [torch.ones(2), torch.ones(3)]
    entries = [issue(gate, group, tensor, number)[0] for number, tensor in enumerate(tensors, 1)]
    copies = [tensor for work in group.issued for tensor in work.tensors]
    together = gate.coalesce(entries, FakeWork(copies))
    assert all(tensor.isnan().all() for tensor in tensors)
    together.wait()
    assert all(tensor.eq(2).all() for tensor in tensors)


def test_operations_coalesced_outside_the_gate_are_not_held(gate):
    assert gate.coalesce([Entry("send", "0", (0, 1), number=9)], work := FakeWork()) is work
