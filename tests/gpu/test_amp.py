"""Mixed precision on ranks: autocast and a scaler behave alike on all of them."""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp import DDPContext, distributed

GPUS = max(1, torch.cuda.device_count())
WORLDS = [
    pytest.param(marks=distributed(world_size=GPUS, backend="nccl", device="cuda"), id="nccl"),
    pytest.param(marks=distributed(world_size=2, backend="gloo", device="cuda"), id="gloo"),
]
pytestmark = [pytest.mark.gpu, pytest.mark.parametrize((), WORLDS)]


def same_on_all_ranks(value: float, ddp: DDPContext) -> bool:
    found: list[float] = [0.0] * ddp.world_size
    dist.all_gather_object(found, value)
    return set(found) == {value}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_weights_and_gradients_in_float32(ddp: DDPContext, dtype: torch.dtype) -> None:
    model = torch.nn.Linear(8, 8).to(ddp.device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index])
    with torch.autocast("cuda", dtype):
        out = wrapped(torch.full((2, 8), ddp.rank + 1.0, device=ddp.device))
    out.float().mean().backward()
    assert out.dtype == dtype
    assert model.weight.grad.dtype == torch.float32
    assert same_on_all_ranks(model.weight.grad.sum().item(), ddp)


def test_an_overflow_on_one_rank_makes_all_ranks_skip_the_step(ddp: DDPContext) -> None:
    """The infinity reaches every rank with the averaged gradients, so every rank's own scaler finds it."""
    model = torch.nn.Linear(2, 1, bias=False).to(ddp.device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.5), torch.amp.GradScaler("cuda", init_scale=8.0)
    before = model.weight.tolist()
    slope = float("inf") if ddp.rank == ddp.world_size - 1 else 1.0
    scaler.scale(wrapped(torch.full((1, 2), slope, device=ddp.device)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() == before
    assert scaler.get_scale() == 4.0
    optimizer.zero_grad()
    scaler.scale(wrapped(torch.ones(1, 2, device=ddp.device)).sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(model.weight.detach(), torch.tensor(before, device=ddp.device) - 0.5)
