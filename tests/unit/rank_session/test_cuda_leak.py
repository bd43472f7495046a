"""CUDA memory that a test leaves allocated is a leak, with its size; numbers stand in for the device."""

import pytest
import torch

from pytest_ddp.rank_session.leak_kind import Leak
from pytest_ddp.rank_session.leaks import Snapshot

MIB = 2**20


class Device:
    """Stands in for the memory functions of torch.cuda; a garbage collection frees a part of the memory."""

    def __init__(self, monkeypatch, allocated=0):
        self.allocated, self.garbage, self.workspaces = allocated, 0, 0
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.allocated + self.workspaces)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self.clear_workspaces, raising=False)
        monkeypatch.setattr("gc.collect", self.collect)

    def clear_workspaces(self):
        self.workspaces = 0

    def collect(self):
        self.allocated, self.garbage = self.allocated - self.garbage, 0


@pytest.mark.parametrize(
    ("kept", "garbage", "found"),
    [
        (3 * MIB // 2, 0, [Leak("1.5 MiB of CUDA memory still allocated", "CUDA memory", lasting=True)]),
        (MIB, 0, []),
        (0, 8 * MIB, []),
        (2 * MIB, 8 * MIB, [Leak("2.0 MiB of CUDA memory still allocated", "CUDA memory", lasting=True)]),
    ],
    ids=["a tensor", "a workspace", "garbage", "garbage and a tensor"],
)
def test_memory_that_is_still_allocated_after_a_garbage_collection_is_a_leak(monkeypatch, kept, garbage, found):
    device = Device(monkeypatch, allocated=5 * MIB)
    before = Snapshot.take()
    device.allocated, device.garbage = 5 * MIB + kept + garbage, garbage
    assert before.restore() == found


def test_workspaces_of_cublas_are_no_leak_and_hide_none(monkeypatch):
    device = Device(monkeypatch)
    device.workspaces = 64 * MIB
    before = Snapshot.take()
    device.workspaces = 96 * MIB
    assert before.restore() == []
    device.workspaces, device.allocated = 64 * MIB, 3 * MIB
    assert before.restore() == [Leak("3.0 MiB of CUDA memory still allocated", "CUDA memory", lasting=True)]


def test_a_process_that_has_not_used_cuda_does_not_call_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: pytest.fail("asked"))
    assert Snapshot.take().restore() == []
