"""Collectives and streams: a wait orders streams, and does not block the host."""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp import DDPContext, distributed

GPUS = max(1, torch.cuda.device_count())
pytestmark = [pytest.mark.gpu, distributed(world_size=GPUS, backend="nccl", device="cuda")]
CYCLES = 10**8  # about 0.05 s of one kernel


def test_an_operation_waits_for_what_its_stream_has_computed(ddp: DDPContext) -> None:
    side, total = torch.cuda.Stream(), torch.zeros(2**20, device=ddp.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        total.fill_(ddp.rank + 1.0)
        work = dist.all_reduce(total, async_op=True)
    work.wait()  # makes the current stream wait
    assert total.unique().tolist() == [ddp.world_size * (ddp.world_size + 1) / 2]


def test_waiting_for_a_handle_does_not_block_the_host(ddp: DDPContext) -> None:
    total, late = torch.ones(4, device=ddp.device), torch.cuda.Event()
    dist.all_reduce(total)
    torch.cuda.synchronize()
    torch.cuda._sleep(50 * CYCLES)
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    late.record()
    assert not late.query()  # the kernels still run, and the host is here
    torch.cuda.synchronize()
    assert late.query()
    assert total.tolist() == [float(ddp.world_size**2)] * 4


def test_backward_on_a_side_stream_is_ordered_before_the_gradients_are_reduced(ddp: DDPContext) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(ddp.device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        wrapped(torch.full((1, 64), ddp.rank + 1.0, device=ddp.device)).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(model.bias.grad, torch.ones(64, device=ddp.device))
    torch.testing.assert_close(model.weight.grad, torch.full((64, 64), (ddp.world_size + 1) / 2, device=ddp.device))


def test_every_test_begins_on_the_default_stream() -> None:
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
