"""A backend that waits itself and returns no handle, as NCCL does for operations that are not asynchronous."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BroadcastOptions

from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.process_group import ObservedGroup
from pytest_ddp.observed.recording.record import Record


class SynchronousGroup(dist.ProcessGroup):
    """A group that completes an operation before it returns; coalesced ones before coalescing ends."""

    def __init__(self):
        super().__init__(0, 1)

    def rank(self):
        return 0

    def broadcast(self, _tensors, _options):
        return None

    def _start_coalescing(self, _device):
        pass

    def _end_coalescing(self, _device):
        return None


class Named(ObservedGroup):
    group_name = "0"  # torch asks a backend in C++, of which there is none


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(current, "_record", Record())
    return current.record()


@pytest.fixture
def group(record):
    group = Named(dist.HashStore(), 0, 1, SynchronousGroup())
    group._ranks = (0,)
    assert group._record is record
    return group


def broadcast(group):
    options = BroadcastOptions()
    options.asyncOp = False
    return group.broadcast([torch.ones(2)], options)


def test_an_operation_without_a_handle_was_waited_for_at_its_launch(group, record):
    assert broadcast(group) is None
    [entry] = record.entries
    assert not entry.asynchronous
    assert entry.launched.time < entry.waited.time < entry.completed.time


def test_coalesced_operations_complete_together(group, record):
    group._start_coalescing(torch.device("cpu"))
    assert [broadcast(group) for _ in range(2)] == [None, None]
    assert [entry.completed for entry in record.entries] == [None, None]
    assert group._end_coalescing(torch.device("cpu")) is None
    first, second = record.entries
    assert second.launched.time < first.waited.time < first.completed.time
    assert second.completed


def test_nothing_is_coalesced(group, record):
    group._start_coalescing(torch.device("cpu"))
    assert group._end_coalescing(torch.device("cpu")) is None
    assert record.entries == []
