"""Over NCCL with one rank per GPU, as many as there are: operations are right, and ranks keep to their GPU.

On one GPU each test runs at world size 1, which still makes a communicator and launches NCCL's kernels.
"""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp import DDPContext, distributed

GPUS = max(1, torch.cuda.device_count())
pytestmark = [pytest.mark.gpu, distributed(world_size=GPUS, backend="nccl", device="cuda")]


def numbers(ddp: DDPContext, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As many numbers as there are ranks: rank + 1, rank + 2, ..."""
    return torch.arange(ddp.world_size, device=ddp.device).add(ddp.rank + 1).to(dtype)


def triangle(ddp: DDPContext) -> int:
    """1 + 2 + ... + the number of ranks."""
    return ddp.world_size * (ddp.world_size + 1) // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_all_reduce_sums_every_dtype(ddp: DDPContext, dtype: torch.dtype) -> None:
    total = numbers(ddp, dtype)
    dist.all_reduce(total)
    expected = [triangle(ddp) + index * ddp.world_size for index in range(ddp.world_size)]
    assert total.tolist() == expected


def test_averages_and_maxima(ddp: DDPContext) -> None:
    mean, most = numbers(ddp), numbers(ddp)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    torch.testing.assert_close(mean[0].item(), triangle(ddp) / ddp.world_size)
    assert most[0].item() == ddp.world_size


def test_one_rank_sends_to_all_and_all_to_one(ddp: DDPContext) -> None:
    last = ddp.world_size - 1
    sent, reduced = numbers(ddp), numbers(ddp)
    dist.broadcast(sent, src=last)
    dist.reduce(reduced, dst=last)
    assert sent[0].item() == last + 1
    if ddp.rank == last:
        assert reduced[0].item() == triangle(ddp)


def test_shards_are_gathered_and_reduced(ddp: DDPContext) -> None:
    gathered = torch.empty(ddp.world_size**2, device=ddp.device)
    dist.all_gather_into_tensor(gathered, numbers(ddp))
    assert gathered.view(ddp.world_size, -1)[:, 0].tolist() == [rank + 1 for rank in range(ddp.world_size)]
    shard = torch.empty(1, device=ddp.device)
    dist.reduce_scatter_tensor(shard, numbers(ddp))
    assert shard.item() == triangle(ddp) + ddp.rank * ddp.world_size


def test_all_to_all_exchanges_one_number_each(ddp: DDPContext) -> None:
    received = torch.empty(ddp.world_size, device=ddp.device)
    dist.all_to_all_single(received, numbers(ddp))
    assert received.tolist() == [ddp.rank + 1 + rank for rank in range(ddp.world_size)]


def test_objects_go_round(ddp: DDPContext) -> None:
    found: list[str | None] = [None] * ddp.world_size
    dist.all_gather_object(found, f"rank {ddp.rank}")
    assert found == [f"rank {rank}" for rank in range(ddp.world_size)]


def test_a_ring_passes_numbers_on(ddp: DDPContext) -> None:
    """On one GPU the rank sends to itself, which NCCL allows inside a group of operations."""
    sent, received = numbers(ddp), torch.empty(ddp.world_size, device=ddp.device)
    following, before = (ddp.rank + 1) % ddp.world_size, (ddp.rank - 1) % ddp.world_size
    operations = [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[0].item() == before + 1


def test_a_subgroup_of_each_rank(ddp: DDPContext) -> None:
    groups = [dist.new_group([rank]) for rank in range(ddp.world_size)]
    total = numbers(ddp)
    dist.all_reduce(total, group=groups[ddp.rank])
    assert total.tolist() == numbers(ddp).tolist()
    dist.destroy_process_group(groups[ddp.rank])


def test_a_rank_is_bound_to_its_gpu(ddp: DDPContext) -> None:
    assert ddp.device == torch.device("cuda", torch.cuda.current_device())
    assert ddp.group.bound_device_id == ddp.device
    assert torch.empty(1, device="cuda").device == ddp.device


def test_no_two_ranks_have_the_same_gpu(ddp: DDPContext) -> None:
    mine = str(torch.cuda.get_device_properties(ddp.device).uuid)
    found: list[str] = [""] * ddp.world_size
    dist.all_gather_object(found, mine)
    assert len(set(found)) == ddp.world_size


def test_a_rank_allocates_on_its_own_gpu_alone(ddp: DDPContext) -> None:
    torch.empty(2**20, device="cuda")
    dist.all_reduce(numbers(ddp))
    others = [index for index in range(torch.cuda.device_count()) if index != ddp.device.index]
    assert [torch.cuda.memory_allocated(index) for index in others] == [0] * len(others)


def test_data_parallel_training_equals_that_of_one_process(ddp: DDPContext) -> None:
    alone, model = (seeded_model(ddp.device) for _ in range(2))
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index], bucket_cap_mb=1)
    whole = torch.arange(ddp.world_size * 24, dtype=torch.float64, device=ddp.device).view(ddp.world_size, 3, 8).sin()
    wrapped(whole[ddp.rank]).pow(2).mean().backward()
    alone(whole.flatten(0, 1)).pow(2).mean().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-9, atol=1e-12)


def seeded_model(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers).double().to(device)
