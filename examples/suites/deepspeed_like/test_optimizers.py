"""A sharded optimizer and its state: 12 tests."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from unit.common import DistributedTest


def model(width):
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))


def step(trained, optimizer):
    trained(torch.ones(2, 3)).sum().backward()
    optimizer.step()


class TestSharding(DistributedTest):
    world_size = 2

    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
    @pytest.mark.parametrize("width", [2, 8])
    def test_as_in_one_process(self, kind, width):
        sharded, whole = model(width), model(width)
        step(sharded, ZeroRedundancyOptimizer(sharded.parameters(), kind, lr=0.1))
        step(whole, kind(whole.parameters(), lr=0.1))
        for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("width", [2, 4, 8])
    def test_state_is_divided(self, width):
        trained = model(width)
        optimizer = ZeroRedundancyOptimizer(trained.parameters(), torch.optim.Adam, lr=0.1)
        step(trained, optimizer)
        count = torch.tensor([float(len(optimizer.optim.state))])
        dist.all_reduce(count)
        assert count.item() == 4

    def test_a_file_of_all_ranks(self, tmp_path):
        (tmp_path / f"rank{dist.get_rank()}").touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == 2

    def test_needs_gpus(self):
        if not torch.cuda.is_available():
            pytest.skip("needs GPUs")

    def test_seeds(self):
        assert torch.initial_seed() is not None
