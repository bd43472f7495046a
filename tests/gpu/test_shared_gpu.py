"""Over gloo several ranks share a GPU: a test of two or four ranks runs on a machine with one."""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp import DDPContext, distributed

pytestmark = [pytest.mark.gpu, distributed(world_size=[2, 4], backend="gloo", device="cuda")]


def test_ranks_take_the_gpus_in_turn(ddp: DDPContext) -> None:
    assert ddp.device == torch.device("cuda", ddp.rank % torch.cuda.device_count())
    assert ddp.device.index == torch.cuda.current_device()


def test_tensors_on_the_gpu_are_summed_and_sent(ddp: DDPContext) -> None:
    total, sent = (torch.full((3,), ddp.rank + 1.0, device=ddp.device) for _ in range(2))
    dist.all_reduce(total)
    dist.broadcast(sent, src=1)
    assert total.tolist() == [ddp.world_size * (ddp.world_size + 1) / 2] * 3
    assert sent.tolist() == [2.0] * 3
    assert total.device == sent.device == ddp.device


def test_results_are_there_when_the_handle_says_so(ddp: DDPContext) -> None:
    total = torch.ones(2**16, device=ddp.device)
    dist.all_reduce(total, async_op=True).wait()
    assert total.unique().tolist() == [ddp.world_size]


def test_data_parallel_gradients_are_averages(ddp: DDPContext) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2, dtype=torch.float64).to(ddp.device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index])
    wrapped(torch.full((1, 4), ddp.rank + 1.0, dtype=torch.float64, device=ddp.device)).sum().backward()
    mean = (ddp.world_size + 1) / 2
    torch.testing.assert_close(model.weight.grad, torch.full_like(model.weight, mean))
