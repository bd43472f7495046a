"""The public API as its users see it: mypy checks this file strictly (`ci/lint`), and pytest runs it."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddp import DDPContext, Held, RankCaller, RankFailure, distributed
from pytest_ddp.observed import Entry, merge_traces


@distributed(world_size=2)
@pytest.fixture(scope="module")
def model(ddp: DDPContext) -> nn.Module:
    torch.manual_seed(ddp.seed)
    return nn.parallel.DistributedDataParallel(nn.Linear(2, 1))


@distributed
def test_a_context(ddp: DDPContext) -> None:
    total = torch.tensor([float(ddp.rank)], device=ddp.device)
    dist.all_reduce(total, group=ddp.group)
    assert total.item() == sum(range(ddp.world_size))
    assert ddp.shared_path.is_dir()


@distributed(group=False)
def test_an_own_group(ddp: DDPContext) -> None:
    dist.init_process_group(ddp.backend, store=ddp.store, rank=ddp.rank, world_size=ddp.world_size)
    assert ddp.group.size() == ddp.world_size


@distributed(observe=True)
def test_a_record(ddp: DDPContext) -> None:
    dist.barrier()
    entry = ddp.collectives[0]
    assert isinstance(entry, Entry)
    assert (entry.op, len(ddp.collectives)) == ("barrier", 1)
    assert [event.time for event in ddp.collectives.events] == [1, 2, 3]


@distributed(timeout=30)
def test_a_fixture(model: nn.Module) -> None:
    loss: torch.Tensor = model(torch.ones(1, 2)).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own


@distributed(world_size=[1, 2], backend="gloo", device="cpu", isolation="warm")
class TestClass:
    def test_method(self, ddp: DDPContext) -> None:
        assert ddp.world_size in {1, 2}


@distributed(world_size=2, observe=True)
def test_expectations(ddp: DDPContext) -> None:
    with ddp.collectives.capture() as block:
        dist.all_reduce(torch.ones(2), group=ddp.group)
    reduced = block.select("all_reduce", group=ddp.group, dtype=torch.float32, inside_backward=False)
    reduced[:1].assert_bytes(8)
    reduced.assert_count(at_least=1, at_most=1)
    ddp.collectives.assert_same_on_all_ranks()
    path = ddp.shared_path / f"{ddp.rank}.json"
    ddp.collectives.export_trace(path)
    merge_traces([path], into=ddp.shared_path / f"merged{ddp.rank}.json")
    assert "all_reduce #1" in str(ddp.collectives.timeline())


def add(number: int) -> int:
    return dist.get_rank() + number


def fail() -> None:
    raise ValueError("on purpose")


def test_ranks_are_called(ddp_ranks: Callable[..., RankCaller]) -> None:
    sums: list[int] = ddp_ranks(world_size=2).run(add, 1)
    assert sums == [1, 2]
    with pytest.raises(RankFailure) as failure:
        ddp_ranks(world_size=2).run(fail)
    assert failure.value.root.rank in {0, 1}


def test_ranks_hold_an_object(ddp_ranks: Callable[..., RankCaller]) -> None:
    with ddp_ranks(world_size=2).hold(list, (1, 2)) as held:
        assert isinstance(held, Held)
        lengths: list[int] = held.run(len)
    assert lengths == [2, 2]
