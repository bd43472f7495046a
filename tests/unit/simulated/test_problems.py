"""Each problem of the communication is reported at once, and says what, where and on which ranks."""

from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddp.planning.request import REDUCTIONS
from pytest_ddp.planning.world import RANK_ORDER
from pytest_ddp.simulated import (
    Deadlock,
    LostMessage,
    Mismatch,
    Reduction,
    SharedTensor,
    TensorWithGaps,
    UnfinishedCollective,
    UseBeforeWait,
    WriteInFlight,
    simulate,
)

SHARED = torch.ones(3)


def reads_before_waiting():
    work = dist.all_reduce(tensor := torch.ones(3), async_op=True)
    total = tensor.sum()
    work.wait()
    return total


def writes_in_flight():
    work = dist.all_reduce(tensor := torch.ones(3), async_op=True)
    tensor.data.zero_()
    work.wait()


def writes_a_view_in_flight():
    work = dist.broadcast(tensor := torch.ones(3), 1, async_op=True)
    tensor[1:].add_(1)
    work.wait()


def writes_what_it_sends():
    other = 1 - dist.get_rank()
    work = dist.isend(tensor := torch.ones(3), other)
    tensor.add_(1)
    dist.recv(tensor, other)
    work.wait()


def reads_after_a_hook_of_backward():
    weight, works = torch.ones(3, requires_grad=True), []
    flat = torch.ones(3)
    weight.register_hook(lambda _: works.append(dist.all_reduce(flat, async_op=True)))
    (2 * weight).sum().backward()
    flat.sum()
    works[0].wait()


def reads_in_backward():
    first, flat, works = torch.ones(3, requires_grad=True), torch.ones(3), []
    second = 2 * first
    second.register_hook(lambda _: works.append(dist.all_reduce(flat, async_op=True)))
    first.register_hook(lambda gradient: gradient + flat)
    (2 * second).sum().backward()
    works[0].wait()


def reads_below_a_mode_of_the_program():
    with FlopCounterMode(display=False):
        work = dist.all_reduce(tensor := torch.ones(3), async_op=True)
    tensor.sum()
    work.wait()


def launches_twice():
    works = [dist.all_reduce(tensor, async_op=True) for tensor in [torch.ones(3)] * 2]
    for work in works:
        work.wait()


def has_gaps():
    dist.all_reduce(torch.ones(8)[::2])


def has_other_strides():
    dist.all_reduce(torch.ones(2, 3) if dist.get_rank() else torch.ones(3, 2).t())


def shares_a_tensor():
    dist.all_reduce(SHARED)


def loses_a_message():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1)


def gets_no_message():
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(2), 1)


def leaves_others_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), async_op=True)


def enters_groups_crosswise():
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups if dist.get_rank() else reversed(groups):
        dist.all_reduce(torch.ones(1), group=group)


def sends_before_receiving():
    other = 1 - dist.get_rank()
    dist.send(torch.ones(1), other)
    dist.recv(torch.ones(1), other)


def makes_groups_in_different_orders():
    rank = dist.get_rank()
    group = dist.new_group([1] if rank else [0, 1])
    dist.all_reduce(torch.ones(1), group=group)


def sends_another_dtype():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2, dtype=torch.float64), 0)


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (reads_before_waiting, UseBeforeWait, "aten.sum.default reads a tensor of all_reduce #1 float32[3] at"),
        (writes_in_flight, WriteInFlight, "aten.zero_.default writes a tensor of all_reduce #1"),
        (writes_a_view_in_flight, WriteInFlight, "aten.add_.Tensor writes a tensor of broadcast #1"),
        (writes_what_it_sends, WriteInFlight, "aten.add_.Tensor writes a tensor of send #1"),
        (reads_after_a_hook_of_backward, UseBeforeWait, "aten.sum.default reads a tensor of all_reduce #1"),
        (reads_in_backward, UseBeforeWait, "aten.add.Tensor reads a tensor of all_reduce #1"),
        (reads_below_a_mode_of_the_program, UseBeforeWait, "aten.sum.default reads a tensor of all_reduce #1"),
        (launches_twice, WriteInFlight, "writes a tensor of all_reduce #1"),
        (has_gaps, TensorWithGaps, "shape [4] and strides [2]"),
        (has_other_strides, Mismatch, "their strides differ, [(3, 1)] and [(1, 2)]"),
        (shares_a_tensor, SharedTensor, "ranks 0 and 1 give the same memory to all_reduce #1"),
        (loses_a_message, LostMessage, "rank 0 launched send #1 float32[2] to rank 1"),
        (gets_no_message, LostMessage, "which never gets a message"),
        (leaves_others_alone, UnfinishedCollective, "which rank 1 never entered"),
        (enters_groups_crosswise, Deadlock, "in group '2' of ranks 0, 1"),
        (sends_before_receiving, Deadlock, "rank 1 waits in send #1 float32[1] to rank 0"),
        (makes_groups_in_different_orders, Mismatch, "all ranks must make the same groups in the same order"),
        (sends_another_dtype, Mismatch, "a send and its receive must agree in dtype"),
    ],
)
def test_is_reported(function, kind, text):
    problem = simulate(function, 2).problem
    assert type(problem) is kind, problem
    assert text in problem.text
    assert "test_problems.py:" in problem.text
    assert problem.ranks


def test_a_key_of_the_store_that_no_rank_sets_is_a_deadlock():
    run = simulate(lambda: dist.distributed_c10d._get_default_store().get("lost"), 2)
    assert isinstance(run.problem, Deadlock)
    assert run.problem.text == "ranks 0, 1 wait for the key '0//lost' of the store, which no rank has set"


def uses_other_parts():
    whole = torch.ones(8)
    work = dist.all_reduce(whole[:4], async_op=True)
    whole[4:].add_(1)
    whole.view(2, 4).detach()
    copy = torch.zeros_like(whole)
    work.wait()
    return (whole + copy).tolist()


def reads_what_it_sends():
    work = dist.broadcast(tensor := torch.full((2,), float(dist.get_rank())), 0, async_op=True)
    read = tensor.sum().item() if dist.get_rank() == 0 else None
    work.wait()
    return read if dist.get_rank() == 0 else tensor.sum().item()


def uses_the_future():
    future = dist.all_reduce(tensor := torch.ones(2), async_op=True).get_future()
    future.then(lambda done: done.value()[0].div_(2)).wait()
    return tensor.tolist()


def polls():
    work = dist.all_reduce(tensor := torch.ones(1), async_op=True)
    while not work.is_completed():
        pass
    return tensor.item()


def polls_a_future():
    future = dist.all_reduce(tensor := torch.ones(1), async_op=True).get_future()
    while not future.done():
        pass
    return tensor.item()


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (uses_other_parts, [2.0] * 8),
        (reads_what_it_sends, 0.0),
        (uses_the_future, [1.0, 1.0]),
        (polls, 2.0),
        (polls_a_future, 2.0),
    ],
)
def test_is_no_problem(function, result):
    run = simulate(function, 2)
    run.raise_problem()
    assert run.results == [result, result]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("rank_order", 1.0), ("tree", 0.0), ("ring", 1.0)],
)
def test_the_order_of_a_reduction_shows(reduction, expected):
    def add():
        total = torch.tensor([1e8, 1.0, -1e8, 1.0][dist.get_rank()])
        dist.all_reduce(total)
        return total.item()

    assert simulate(add, 4, reduction=reduction).results == [expected] * 4


@pytest.mark.parametrize("factor", [3.0, torch.tensor(3.0)])
def test_premul_sum_multiplies_before_it_adds(factor):
    def add():
        rank = dist.get_rank()
        total, parts, mine = torch.tensor([float(rank)]), torch.ones(2) * rank, torch.zeros(1)
        dist.all_reduce(total, op=dist._make_nccl_premul_sum(factor))
        dist.reduce_scatter_tensor(mine, parts, op=dist._make_nccl_premul_sum(float(1 + rank)))
        return total.item(), mine.item()

    assert simulate(add, 2).results == [(3.0, 2.0)] * 2


def test_the_reductions_of_the_decorator_are_those_of_a_simulation():
    assert get_args(Reduction) == REDUCTIONS
    assert RANK_ORDER in REDUCTIONS


def test_a_ring_begins_each_part_at_another_rank():
    def add():
        parts = torch.full((4,), [1e8, 1.0, -1e8, 1.0][dist.get_rank()])
        dist.all_reduce(parts)
        return parts.tolist()

    assert simulate(add, 4, reduction="ring").results == [[1.0, 0.0, 1.0, 0.0]] * 4
