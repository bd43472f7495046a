"""Every data-parallel wrapper trains as one process would on the batches of all ranks."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from reference_models import INPUTS, ODD_PARTS, Buffered, Chain, around, every_odd_part, linear, mlp, seeded
from reference_wrappers import WRAPPERS, Wrapper
from side_by_side import SideBySide, assert_same_on_all_ranks, batch, loss, sgd
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pytest_ddp import DDPContext, distributed
from pytest_ddp.rank.collective_hooks import watch_collectives

pytestmark = pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


# Construction


@distributed(world_size=3)
def test_wrapping_gives_every_rank_the_parameters_of_rank_0(wrapper: Wrapper, ddp: DDPContext) -> None:
    module = seeded(every_odd_part, seed=ddp.rank)
    wrapper.wrap(module)
    for mine, rank_0s in zip(module.parameters(), seeded(every_odd_part, seed=0).parameters(), strict=True):
        assert same_bits(mine.detach(), rank_0s.detach())


@distributed(world_size=3)
def test_wrapping_gives_every_rank_the_buffers_of_rank_0(wrapper: Wrapper, ddp: DDPContext) -> None:
    module = seeded(Buffered, seed=ddp.rank)
    wrapper.wrap(module)
    for mine, rank_0s in zip(module.buffers(), seeded(Buffered, seed=0).buffers(), strict=True):
        assert same_bits(mine, rank_0s)


@distributed(world_size=2)
def test_wrapping_changes_nothing_but_values(wrapper: Wrapper) -> None:
    module = every_odd_part()
    before = [(id(p), p.stride(), p.dtype, p.requires_grad, p.grad, name) for name, p in module.named_parameters()]
    wrapped = wrapper.wrap(module)
    assert isinstance(wrapped, nn.Module)
    after = [(id(p), p.stride(), p.dtype, p.requires_grad, p.grad, name) for name, p in module.named_parameters()]
    assert after == before


@distributed(world_size=2)
def test_an_optimizer_made_before_wrapping_keeps_working(wrapper: Wrapper, ddp: DDPContext) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    module = seeded(mlp, seed=ddp.rank)
    training.module, training.optimizer = module, sgd(module)
    training.ddp_model = wrapper.wrap(module)
    training.train(range(2))


# Training


@distributed(world_size=[1, 2, 4])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_training_equals_one_process_on_the_concatenated_batch(
    wrapper: Wrapper, make_optimizer: Callable[[nn.Module], Optimizer]
) -> None:
    training = SideBySide(mlp, make_optimizer, wrapper=wrapper)
    training.train(range(5))
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=3)
def test_ranks_stay_equal_to_the_last_bit(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(seeded(mlp, seed=ddp.rank).float())
    optimizer = adamw(model)
    for step in range(4):
        inputs, targets = batch(step, ddp.rank)
        optimizer.zero_grad()
        loss(model, [(inputs.float(), targets.float())]).backward()
        wrapper.after_backward(model, optimizer)
        assert_same_on_all_ranks(p.grad for p in model.parameters())
        optimizer.step()
        assert_same_on_all_ranks(model.parameters())


@distributed(world_size=1)
def test_one_rank_trains_as_without_the_wrapper_to_the_last_bit(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, adamw, wrapper=wrapper)
    training.train(range(3))
    for mine, twins in zip(training.module.parameters(), training.twin.parameters(), strict=True):
        assert torch.equal(mine, twins)


@distributed(world_size=2)
@pytest.mark.parametrize("part", ODD_PARTS)
def test_every_kind_of_parameter_is_trained_as_in_one_process(wrapper: Wrapper, part: str) -> None:
    training = SideBySide(lambda: around(ODD_PARTS[part]()), wrapper=wrapper)
    training.train(range(3))
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_parameters_of_many_kinds_live_in_one_model(wrapper: Wrapper) -> None:
    SideBySide(lambda: around(every_odd_part()), wrapper=wrapper).train(range(3))


@distributed(world_size=2)
@pytest.mark.parametrize("make_model", [nn.Identity, lambda: linear(INPUTS).requires_grad_(requires_grad=False)])
def test_a_model_without_anything_to_train_still_runs(wrapper: Wrapper, make_model: Callable[[], nn.Module]) -> None:
    model = wrapper.wrap(make_model())
    model(torch.ones(2, INPUTS, dtype=torch.float64))
    wrapper.after_backward(model, sgd(linear()))
    assert all(p.grad is None for p in model.parameters())


@distributed(world_size=2)
def test_large_float16_gradients_do_not_overflow_on_the_way_to_their_mean(wrapper: Wrapper) -> None:
    model = wrapper.wrap(nn.Linear(2, 1, bias=False).half())
    [weight] = model.parameters()
    (weight * 40_000).sum().backward()
    wrapper.after_backward(model, sgd(model))
    assert weight.grad.tolist() == [[40_000.0, 40_000.0]]


@distributed(world_size=2)
def test_a_sparse_gradient_becomes_the_dense_mean_in_this_step_and_the_next(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(nn.Embedding(3, 1, sparse=True).double())
    [table] = model.parameters()
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor([ddp.rank, 2])).sum().backward()
        wrapper.after_backward(model, sgd(model))
        assert table.grad.tolist() == [[0.5], [0.5], [1.0]]


@distributed(world_size=2)
def test_complex_parameters_get_complex_means(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(nn.Linear(1, 1, bias=False, dtype=torch.complex128))
    [weight] = model.parameters()
    (weight * (1 + 2j * ddp.rank)).real.sum().backward()
    wrapper.after_backward(model, sgd(model))
    assert weight.grad.tolist() == [[1 - 1j]]


# Which parameters are used


@distributed(world_size=3)
def test_a_parameter_unused_on_some_ranks_counts_as_zero_there(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    training.train(range(4), use=lambda rank: [(0, 1), (0, 2)][rank % 2])
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_a_parameter_that_only_the_last_rank_uses_moves_on_every_rank(wrapper: Wrapper, ddp: DDPContext) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    training.train(range(3), use=lambda rank: (0, 1) if rank == ddp.world_size - 1 else ())
    assert training.module.links[0].weight.grad is not None


@distributed(world_size=2)
def test_a_parameter_used_nowhere_keeps_no_gradient_and_does_not_decay(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, adamw, wrapper=wrapper)
    unused = training.module.links[2].weight
    before = unused.detach().clone()
    training.train(range(3), use=lambda _rank: (0, 1))
    assert unused.grad is None
    assert torch.equal(unused, before)


@distributed(world_size=2)
def test_parameters_used_in_some_steps_keep_no_old_gradients(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    for step in range(5):
        training.train([step], use=lambda rank, step=step: ((step + rank) % 3, (step + 1) % 3))


@distributed(world_size=2)
def test_ranks_may_reach_equal_shapes_in_different_orders(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    training.train(range(3), use=lambda rank: [(0, 1, 2), (2, 0, 1)][rank])


@distributed(world_size=2)
def test_every_rank_runs_the_same_collectives_whichever_parameters_it_uses(wrapper: Wrapper, ddp: DDPContext) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    seen: list[str] = []
    with watch_collectives(lambda collective: seen.append(str(collective))):
        training.train(range(2), use=lambda rank: [(0, 1, 2), (2,)][rank])
    seen_by_rank: list[list[str]] = [[] for _ in range(ddp.world_size)]
    dist.all_gather_object(seen_by_rank, seen)
    assert seen_by_rank[0] == seen_by_rank[1]


@distributed(world_size=2)
def test_parameters_may_be_frozen_and_unfrozen_between_steps(wrapper: Wrapper) -> None:
    training = SideBySide(lambda: around(ODD_PARTS["frozen"]()), wrapper=wrapper)
    training.train([0])
    for step in (1, 2, 3):
        for model in (training.module, training.twin):
            model[2].requires_grad_(step != 2)  # frozen when it was wrapped
            model[0].requires_grad_(step == 2)
        training.train([step])
