"""Collectives: 18 tests."""

import pytest
import torch
import torch.distributed as dist
from unit.common import DistributedTest


class TestReductions(DistributedTest):
    world_size = 2

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
    def test_sum(self, dtype):
        total = torch.ones(3, dtype=dtype)
        dist.all_reduce(total)
        assert total.tolist() == [2, 2, 2]

    @pytest.mark.parametrize("operation", ["MAX", "MIN", "PRODUCT"])
    def test_operations(self, operation):
        value = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(value, getattr(dist.ReduceOp, operation))
        assert value.item() == {"MAX": 2, "MIN": 1, "PRODUCT": 2}[operation]

    @pytest.mark.parametrize("root", [0, 1])
    def test_broadcast(self, root):
        value = torch.tensor([float(dist.get_rank())])
        dist.broadcast(value, root)
        assert value.item() == root


class TestThree(DistributedTest):
    world_size = 3

    @pytest.mark.parametrize("size", [1, 5])
    def test_gather(self, size):
        found = [torch.empty(size) for _ in range(3)]
        dist.all_gather(found, torch.full((size,), float(dist.get_rank())))
        assert torch.stack(found).sum() == 3 * size

    @pytest.mark.parametrize("tag", [0, 7])
    def test_a_ring(self, tag):
        rank, size = dist.get_rank(), dist.get_world_size()
        received = torch.empty(1)
        work = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size, tag=tag)
        dist.recv(received, (rank - 1) % size, tag=tag)
        work.wait()
        assert received.item() == (rank - 1) % size


class TestSizes(DistributedTest):
    @pytest.mark.world_size(1)
    def test_one(self):
        assert dist.get_world_size() == 1

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_two(self, number):
        total = torch.tensor([float(number)])
        dist.all_reduce(total)
        assert total.item() == 2 * number

    def test_default(self):
        assert dist.get_world_size() == 2


class TestOwnGroup(DistributedTest):
    init_distributed = False

    def test_it_makes_its_own(self):
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        assert dist.get_world_size() == 2
