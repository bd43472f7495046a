"""Training on several ranks: 16 tests."""

import copy

import pytest
import torch
import torch.distributed as dist
from progress import Bar
from torch.nn.parallel import DistributedDataParallel


def batches(count):
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(count, 8, 4, generator=generator)
    rank, size = dist.get_rank(), dist.get_world_size()
    return [(batch[rank::size], batch.sum(1, keepdim=True)[rank::size]) for batch in whole]


def train(model, count, optimizer=torch.optim.SGD, rate=0.05):
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    chosen = optimizer(wrapped.parameters(), lr=rate)
    for inputs, targets in Bar(batches(count)):
        chosen.zero_grad()
        torch.nn.functional.mse_loss(wrapped(inputs), targets).backward()
        chosen.step()
    return wrapped.module


def gathered(value):
    values = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(values, value)
    return values


@pytest.mark.world_size(2)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranks_keep_equal_weights(model, count):
    for parameter in train(model, count).parameters():
        first, second = gathered(parameter.detach())
        assert torch.equal(first, second)


@pytest.mark.world_size(2)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_weights_change(model, optimizer):
    trained = train(model, 2, optimizer)
    assert all(not torch.equal(a, b) for a, b in zip(model.parameters(), trained.parameters(), strict=True))


@pytest.mark.world_size(2)
@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_the_loss_falls(model, rate):
    inputs, targets = batches(1)[0]
    before = torch.nn.functional.mse_loss(model(inputs), targets)
    after = torch.nn.functional.mse_loss(train(model, 20, rate=rate)(inputs), targets)
    assert after < before


@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", range(4))
def test_seeds_are_alike(number):
    drawn = torch.rand(3)
    first, second = gathered(drawn)
    assert torch.equal(first, second)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(17)))


@pytest.mark.world_size(2)
@pytest.mark.parametrize("shape", [(1,), (3, 2), (0,), (2, 2, 2)])
def test_reduction_of_shapes(shape):
    total = torch.ones(shape)
    dist.all_reduce(total)
    assert torch.equal(total, torch.full(shape, 2.0))
