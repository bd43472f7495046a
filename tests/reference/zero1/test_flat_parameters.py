"""Parameters that travel together lie side by side, so that nothing is copied; others stay, and are copied."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from beside_unsharded import BesideUnsharded, drawn, parameters
from side_by_side import assert_same_on_all_ranks
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from pytest_ddp import DDPContext, distributed
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives
from reference.zero1.flat_parameters import FlatParameters, movable_parameters


def broadcasts(action: Callable[[], object]) -> list[Fingerprint]:
    seen = list[Fingerprint]()
    with watch_collectives(seen.append):
        action()
    assert {collective.op for collective in seen} <= {"broadcast"}
    return seen


def bytes_of(tensors: list[nn.Parameter]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# Communication


@distributed(world_size=2)
def test_a_step_is_one_broadcast_per_owner_and_dtype_and_sends_each_parameter_once() -> None:
    beside = BesideUnsharded(AdamW, make=lambda: parameters([(4, 4)] * 8, [torch.float64, torch.float32]))
    beside.draw_gradients(0)
    seen = broadcasts(beside.update)
    assert len(seen) == 4
    assert sum(collective.bytes for collective in seen) == bytes_of(beside.mine)


@distributed(world_size=2)
def test_what_is_frozen_is_not_sent_until_it_is_trained() -> None:
    def half_frozen() -> list[nn.Parameter]:
        return [p.requires_grad_(number % 2 == 0) for number, p in enumerate(parameters())]

    beside = BesideUnsharded(AdamW, make=half_frozen)
    beside.draw_gradients(0)
    assert sum(each.bytes for each in broadcasts(beside.update)) == bytes_of(beside.mine[::2])
    for these, _ in beside.both:
        for parameter in these:
            parameter.requires_grad_(requires_grad=True)
    beside.draw_gradients(1)
    assert sum(each.bytes for each in broadcasts(beside.update)) == bytes_of(beside.mine)


# Memory


def lie_side_by_side(tensors: list[nn.Parameter]) -> bool:
    ordered = sorted((tensor for tensor in tensors if tensor.numel()), key=Tensor.data_ptr)
    return all(one.data_ptr() + one.nbytes == other.data_ptr() for one, other in pairwise(ordered))


@distributed(world_size=1)
def test_parameters_move_once_and_keep_values_shapes_and_gradients(ddp: DDPContext) -> None:
    beside = BesideUnsharded(AdamW)
    assert lie_side_by_side(beside.mine)
    beside.assert_parameters_equal()
    places = [parameter.data_ptr() for parameter in beside.mine]
    beside.train(range(2))
    assert [parameter.data_ptr() for parameter in beside.mine] == places, f"on rank {ddp.rank}"


@distributed(world_size=1)
@pytest.mark.parametrize("change", ["add_group", "new_optimizer"])
def test_those_side_by_side_already_stay(change: str) -> None:
    beside = BesideUnsharded(AdamW, lambda them: them[:4], lambda: parameters([(4, 4), (2, 2), (2, 2), (3,), (3,)]))
    places = [parameter.data_ptr() for parameter in beside.mine[:4]]
    if change == "add_group":
        beside.sharded.add_param_group({"params": beside.mine[4:]})
        assert lie_side_by_side(beside.mine)
    else:
        beside.new()
        assert [parameter.data_ptr() for parameter in beside.mine[:4]] == places


@distributed(world_size=1)
def test_each_is_aligned_as_far_as_its_size_allows() -> None:
    beside = BesideUnsharded(AdamW, make=lambda: parameters([(3,), (8, 8), (5, 5), (4, 4), (7, 2), (1,), (16, 16)]))
    start = min(parameter.data_ptr() for parameter in beside.mine)
    for parameter in beside.mine:
        largest_power_of_two = parameter.nbytes & -parameter.nbytes
        assert (parameter.data_ptr() - start) % largest_power_of_two == 0


def transposed() -> list[nn.Parameter]:
    return [nn.Parameter(drawn(0, (4, 6)).t()), *parameters([(3, 3)])]


def part_of_more() -> list[nn.Parameter]:
    return [nn.Parameter(drawn(0, (10,))[2:5]), *parameters([(3, 3)])]


def sharing_memory() -> list[nn.Parameter]:
    first, second = parameters([(3, 3), (3, 3)])
    second.data = first.data
    return [first, second]


def with_gaps() -> list[nn.Parameter]:
    return [nn.Parameter(drawn(0, (4, 12))[:, ::2]), *parameters([(3, 3)])]


@distributed(world_size=2)
@pytest.mark.parametrize("make", [transposed, part_of_more, with_gaps, sharing_memory])
def test_others_memory_is_left_alone(make: Callable[[], list[nn.Parameter]], ddp: DDPContext) -> None:
    these = make()
    before = these[0].data_ptr(), these[0].stride()
    beside = BesideUnsharded(SGD, make=lambda: these, lr=0.1)
    assert (these[0].data_ptr(), these[0].stride()) == before
    assert these[0] not in movable_parameters(these)
    beside.mine, beside.twins = these, [nn.Parameter(p.detach().clone()) for p in make()]
    if make is sharing_memory:
        assert these[0].data_ptr() == these[1].data_ptr(), f"on rank {ddp.rank}"
        return  # trained by two owners, what it becomes is whose broadcast came last
    beside.unsharded = SGD(beside.twins, lr=0.1)
    beside.train(range(2))
    assert (these[0].data_ptr(), these[0].stride()) == before


@distributed(world_size=2)
def test_ranks_may_lay_out_a_parameter_differently(ddp: DDPContext) -> None:
    values = drawn(0, (4, 6))
    weight = nn.Parameter(values.clone() if ddp.rank == 0 else values.t().contiguous().t())
    FlatParameters([weight, *parameters([(3,)])], owner=0, movable=movable_parameters([weight]))
    beside = BesideUnsharded(SGD, make=lambda: [nn.Parameter(weight.detach()), *parameters([(6, 6)])], lr=0.1)
    beside.train(range(2))
    assert_same_on_all_ranks(beside.mine)


# Whatever happens to the parameters later


@distributed(world_size=2)
def test_they_may_change_their_dtype_later(ddp: DDPContext) -> None:
    beside = BesideUnsharded(SGD, make=lambda: parameters(dtypes=[torch.float32]), lr=0.1)
    beside.train([0])
    for these, _ in beside.both:
        for parameter in these:
            parameter.data = parameter.data.double()
    beside.train([1, 2])
    assert_same_on_all_ranks(beside.mine)
    assert beside.mine[0].dtype == torch.float64, f"on rank {ddp.rank}"


@distributed(world_size=2)
@pytest.mark.parametrize(
    "replace",
    [torch.clone, lambda p: p.t().contiguous().t(), torch.t],
    ids=["elsewhere", "elsewhere_and_transposed", "transposed"],
)
def test_one_rank_may_replace_their_memory_later(replace: Callable[[Tensor], Tensor], ddp: DDPContext) -> None:
    beside = BesideUnsharded(SGD, make=lambda: parameters([(6, 6), (5, 5), (6, 6), (4, 4)]), lr=0.1)
    beside.train([0])
    if ddp.rank == 1:
        for parameter in beside.mine[:2]:
            values = parameter.detach().clone()
            parameter.data = replace(parameter.data)
            parameter.data.copy_(values)
    beside.train([1, 2])
    assert_same_on_all_ranks(beside.mine)


@distributed(world_size=2)
def test_backward_through_weights_that_have_changed_is_refused_on_every_rank() -> None:
    first, second = parameters([(3, 3), (3, 3)])
    optimizer = BesideUnsharded(SGD, make=lambda: [first, second]).sharded
    output = ((drawn(3, (3, 3)) @ first).tanh() @ second).sum()
    output.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


@distributed(world_size=2)
def test_backward_through_weights_that_have_not_changed_is_allowed() -> None:
    first, second, third = parameters([(3, 3), (3, 3), (3, 3)])
    optimizer = BesideUnsharded(SGD, make=lambda: [first, second, third]).sharded
    output = (drawn(3, (3, 3)) @ first @ second).sum()
    third.grad = drawn(4, (3, 3))
    optimizer.step()
    output.backward()
    assert first.grad is not None
