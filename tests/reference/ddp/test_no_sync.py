"""Inside `no_sync` ranks do not communicate, and gradients add up; the next synchronized backward sends the sums."""

from collections.abc import Callable

import pytest
import torch
from reference_models import Buffered, Chain, mlp, seeded
from reference_wrappers import ONE_OF_EACH, Wrapper
from side_by_side import SideBySide, assert_same_on_all_ranks, batch, sgd
from torch import nn
from torch.optim import AdamW, Optimizer

from pytest_ddp import DDPContext, distributed
from pytest_ddp.rank.collective_hooks import watch_collectives

pytestmark = pytest.mark.parametrize("wrapper", ONE_OF_EACH.values(), ids=ONE_OF_EACH)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def accumulate(training: SideBySide, batches: list[int], **by_rank: Callable[[int], object]) -> None:
    """Forward and backward on these batches; only the last one is synchronized."""
    *alone, last = batches
    for number in alone:
        with training.ddp_model.no_sync():
            training.local_loss(number, **by_rank).backward()
            training.finish()
        training.twin_backward(number, **by_rank)
    training.backward(last, **by_rank)


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation_equals_one_process(wrapper: Wrapper, set_to_none: bool) -> None:  # noqa: FBT001  a parameter of the test
    training = SideBySide(mlp, adamw, wrapper=wrapper)
    for step in range(3):
        training.zero_grad(set_to_none=set_to_none)
        accumulate(training, [10 * step, 10 * step + 1, 10 * step + 2])
        training.update()
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_nothing_is_communicated_inside(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(seeded(Buffered, seed=ddp.rank))
    seen: list[object] = []
    with watch_collectives(seen.append), model.no_sync():
        for step in range(2):
            model(batch(step, ddp.rank)[0]).sum().backward()
            wrapper.after_backward(model, sgd(model))
    assert not seen


@distributed(world_size=2)
def test_a_parameter_used_inside_only_is_averaged_too(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, adamw, wrapper=wrapper)
    for step in range(2):
        training.zero_grad()
        with training.ddp_model.no_sync():
            training.local_loss(step, use=lambda _rank: (0, 1)).backward()
        training.twin_backward(step, use=lambda _rank: (0, 1))
        training.backward(10 + step, use=lambda rank: [(2,), (2, 0)][rank])
        training.update()
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_a_step_may_follow_a_step_whose_gradients_were_kept(wrapper: Wrapper) -> None:
    """If gradients are not cleared after a step, their means are part of the next sum on every rank."""
    training = SideBySide(mlp, wrapper=wrapper)
    training.zero_grad()
    accumulate(training, [0, 1])
    training.update()
    accumulate(training, [2, 3])
    training.update()


@distributed(world_size=2)
def test_backward_decides_not_forward(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    training.zero_grad()
    loss = training.local_loss(0)
    with training.ddp_model.no_sync():
        loss.backward()
        alone = training.local_loss(1)
    training.twin_backward(0)
    alone.backward()
    training.finish()
    training.twin_backward(1)
    training.update()


def raise_inside(training: SideBySide) -> None:
    with training.ddp_model.no_sync():
        with training.ddp_model.no_sync():
            pass
        training.local_loss(0).backward()
        training.finish()
        raise KeyError


@distributed(world_size=2)
def test_it_may_be_nested_and_left_by_an_exception(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    seen: list[object] = []
    with watch_collectives(seen.append), pytest.raises(KeyError):
        raise_inside(training)
    assert not seen
    training.zero_grad()
    training.train(range(2))


@distributed(world_size=2)
def test_gradients_inside_are_the_sum_of_this_ranks_own(wrapper: Wrapper, ddp: DDPContext) -> None:
    model, alone = wrapper.wrap(seeded(mlp, seed=0)), seeded(mlp, seed=0)
    for step in range(2):
        inputs, _ = batch(step, ddp.rank)
        alone(inputs).square().sum().backward()
        with model.no_sync():
            model(inputs).square().sum().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, expected.grad)
