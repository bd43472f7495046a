"""What tensors hold is counted exactly at each moment, whoever releases them."""

import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddp import distributed
from reference.bench.allocations import Moment, watch_allocations

CPU = torch.device("cpu")


def test_tensors_count_while_they_live() -> None:
    before = torch.zeros(1000)
    with watch_allocations(CPU) as watch:
        kept = torch.ones(100)
        before.add_(1)
        view = before[:10]
        watch.mark("made")
        temporary = torch.ones(500)
        del temporary
        watch.mark("released")
        del kept, view
        watch.mark("all gone")
    assert watch.moments == [Moment("made", 400, 400), Moment("released", 400, 2400), Moment("all gone", 0, 400)]


def test_what_autograd_saves_counts_until_backward() -> None:
    layer, inputs = nn.Linear(10, 10, bias=False), torch.ones(5, 10)
    with watch_allocations(CPU) as watch:
        loss = layer(inputs).exp().sum()
        watch.mark("after forward")  # the exponentials and the loss
        loss.backward()
        watch.mark("after backward")  # the gradient and the loss
    assert [moment.bytes for moment in watch.moments] == [4 * 50 + 4, 4 * 100 + 4]


def test_on_cuda_garbage_from_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in a cycle lives until garbage collection; each mark collects."""
    cycle = nn.Linear(1, 1)
    cycle.itself = [cycle]
    alive = weakref.ref(cycle)
    del cycle
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 100 + 1000 * (alive() is not None))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    with watch_allocations(torch.device("cuda")) as watch:
        watch.mark("now")
    assert watch.moments == [Moment("now", 0, 0)]


@distributed(world_size=2)
def test_tensors_that_the_backend_releases_last_are_not_counted() -> None:
    with watch_allocations(CPU) as watch:
        for _ in range(5):
            works = [dist.all_reduce(torch.ones(1000 * size), async_op=True) for size in range(1, 6)]
            for work in works:
                work.wait()
            del works, work
            watch.mark("exchanged")
    assert [moment.bytes for moment in watch.moments] == [0] * 5
    assert watch.moments[0].peak == pytest.approx(4 * 15_000)
