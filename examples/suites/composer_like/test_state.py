"""Checkpoints, samplers, scripts, and tests of one process: 14 tests."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@pytest.mark.world_size(2)
@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_sampler_gives_each_rank_its_share(length):
    sampler = DistributedSampler(range(length), shuffle=False)
    everyone = [None, None]
    dist.all_gather_object(everyone, list(sampler))
    assert {*everyone[0], *everyone[1]} == set(range(length))


@pytest.mark.world_size(2)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader(workers):
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), num_workers=workers)
    total = torch.stack([batch.sum() for (batch,) in loader]).sum()
    dist.all_reduce(total)
    assert total.item() == 28


@pytest.mark.world_size(2)
@pytest.mark.parametrize("kind", ["model", "optimizer"])
def test_rank_0_sends_its_state(model, kind):
    optimizer = torch.optim.Adam(model.parameters())
    state = {"model": model, "optimizer": optimizer}[kind].state_dict()
    objects = [state if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(objects)
    assert objects[0].keys() == state.keys()


@pytest.mark.world_size(2)
def test_only_rank_0_writes(model, tmp_path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), tmp_path / "model.pt")
    assert (tmp_path / "model.pt").exists() == (dist.get_rank() == 0)


@pytest.mark.world_size(2)
def test_an_error_on_every_rank():
    with pytest.raises(ValueError, match="rank"):
        raise ValueError(f"rank {dist.get_rank()}")


@pytest.mark.world_size(2)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs GPUs")
def test_on_gpus():
    assert torch.ones(1, device="cuda").item() == 1


def test_a_script():
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.ones(2).sum())"], capture_output=True)
    assert done.stdout == b"tensor(2.)\n"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_in_one_process(model, number):
    assert model(torch.ones(number, 4)).shape == (number, 1)
