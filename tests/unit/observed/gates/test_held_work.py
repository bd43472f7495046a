"""Handles that a gate holds, on real ones that are played: errors, and operations that are coalesced as NCCL does."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from pytest_ddp.observed import Entry, InOrder, Moment
from pytest_ddp.observed.gates.gate import ScheduledGate
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.record import Record


class Played:
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


class Group:
    """A group whose operations are played; coalesced ones give no handle."""

    def __init__(self, *, coalesces=False, error=None):
        self.coalesces, self.error, self.issued = coalesces, error, []

    def rank(self):
        return 0

    def allreduce(self, tensors, _):
        self.issued.append(Played(tensors, self.error))
        return None if self.coalesces else self.issued[-1]


@pytest.fixture
def gate():
    return ScheduledGate(InOrder((2, 1)), Record())


def issue(gate, group, tensor, number=1):
    call = Call("0", (0, 1), group, method="allreduce", args=([tensor], SimpleNamespace()), keywords={})
    entry = Entry("all_reduce", "0", (0, 1), number=number, asynchronous=True, launched=Moment(number))
    return entry, gate.issue(entry, call)


def test_a_failure_is_raised_to_who_waits_and_nothing_lands(gate):
    _, work = issue(gate, Group(error=RuntimeError("peer left")), tensor := torch.ones(2))
    with pytest.raises(RuntimeError, match="peer left"):
        work.wait()
    assert tensor.isnan().all()


def test_a_failure_is_told_to_who_follows_not_to_who_waits_for_another(gate):
    _, work = issue(gate, Group(), torch.ones(2))
    _, failing = issue(gate, Group(error=RuntimeError("peer left")), torch.ones(2), 2)
    future = failing.get_future()
    assert work.wait()
    with pytest.raises(RuntimeError, match="peer left"):
        future.wait()


def test_a_future_that_is_asked_for_late_is_complete(gate):
    _, work = issue(gate, Group(), tensor := torch.ones(2))
    work.wait()
    assert work.get_future().value() == [tensor]
    _, failing = issue(gate, Group(error=RuntimeError("peer left")), torch.ones(2), 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="peer left"):
            failing.wait()
    with pytest.raises(RuntimeError, match="peer left"):
        failing.get_future().wait()


def test_the_timeout_reaches_the_real_handle(gate):
    _, work = issue(gate, group := Group(), torch.ones(2))
    work.wait(timedelta(seconds=7))
    assert group.issued[0].waits == [timedelta(seconds=7)]


def test_coalesced_operations_land_when_their_common_handle_is_waited_for(gate):
    group, tensors = Group(coalesces=True), [torch.ones(2), torch.ones(3)]
    entries = [issue(gate, group, tensor, number)[0] for number, tensor in enumerate(tensors, 1)]
    copies = [tensor for work in group.issued for tensor in work.tensors]
    together = gate.coalesce(entries, Played(copies))
    assert all(tensor.isnan().all() for tensor in tensors)
    together.wait()
    assert all(tensor.eq(2).all() for tensor in tensors)


def test_what_was_coalesced_outside_the_gate_is_left_alone(gate):
    assert gate.coalesce([Entry("send", "0", (0, 1), number=9)], work := Played()) is work
