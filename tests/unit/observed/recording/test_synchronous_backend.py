"""A backend that waits by itself and gives no handle, as NCCL does for operations that nobody wants to wait for."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BroadcastOptions

from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.process_group import ObservedGroup
from pytest_ddp.observed.recording.record import Record


class WaitsByItself(dist.ProcessGroup):
    """Has done what it is asked for when it returns; of operations that are coalesced, when they are ended."""

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
    group = Named(dist.HashStore(), 0, 1, WaitsByItself())
    group._ranks = (0,)
    assert group._record is record
    return group


def broadcast(group):
    options = BroadcastOptions()
    options.asyncOp = False
    return group.broadcast([torch.ones(2)], options)


def test_what_gives_no_handle_was_waited_for_where_it_was_launched(group, record):
    assert broadcast(group) is None
    [entry] = record.entries
    assert not entry.asynchronous
    assert entry.launched.time < entry.waited.time < entry.completed.time


def test_what_is_coalesced_is_over_when_all_is(group, record):
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
