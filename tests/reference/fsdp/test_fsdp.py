"""FSDP trains as one process would on the batches of all ranks."""

from collections.abc import Callable, Iterator

import pytest
import torch
from fsdp_models import MODULES
from fsdp_side_by_side import FSDP, Sharded, whole
from reference_models import (
    DTYPE,
    INPUTS,
    ODD_PARTS,
    Buffered,
    Chain,
    Uses,
    around,
    every_odd_part,
    linear,
    mlp,
    seeded,
)
from side_by_side import assert_close, assert_freed, batch, loss, sgd
from subgroups import subgroups_destroyed
from torch import nn
from torch.optim import AdamW, Optimizer

from pytest_ddp import DDPContext, distributed


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


@distributed(world_size=2)
def test_a_wrapper_without_references_is_freed_with_its_parameters() -> None:
    assert_freed(FSDP, mlp)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


@distributed(world_size=3)
def test_wrapping_splits_the_matrices_of_rank_0_and_copies_the_rest(ddp: DDPContext) -> None:
    module, rank_0s = seeded(every_odd_part, seed=ddp.rank), seeded(every_odd_part, seed=0)
    before = [(name, id(parameter), parameter.dtype) for name, parameter in module.named_parameters()]
    FSDP.wrap(module)
    assert [(name, id(parameter), parameter.dtype) for name, parameter in module.named_parameters()] == before
    for mine, original in zip(module.parameters(), rank_0s.parameters(), strict=True):
        assert torch.equal(whole(mine.detach(), original), original)
        most = -(-original.numel() // 3) if original.dim() > 1 else original.numel()
        assert mine.numel() <= most
        assert mine.untyped_storage().nbytes() <= most * mine.element_size()


@distributed(world_size=2)
def test_wrapping_gives_every_rank_the_buffers_of_rank_0(ddp: DDPContext) -> None:
    module = seeded(Buffered, seed=ddp.rank)
    FSDP.wrap(module)
    for mine, rank_0s in zip(module.buffers(), seeded(Buffered, seed=0).buffers(), strict=True):
        assert mine.numpy().tobytes() == rank_0s.numpy().tobytes()


@distributed(world_size=[1, 2, 3, 4])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_training_equals_one_process_on_the_concatenated_batch(
    make_optimizer: Callable[[nn.Module], Optimizer],
) -> None:
    Sharded(mlp, make_optimizer, tolerance=1e-12).train(range(5))


@distributed(world_size=1)
def test_one_rank_trains_as_without_it_to_the_last_bit() -> None:
    Sharded(mlp, adamw, tolerance=0).train(range(3))


@distributed(world_size=[2, 3])
@pytest.mark.parametrize("part", ODD_PARTS)
def test_every_kind_of_parameter_is_trained_as_in_one_process(part: str) -> None:
    Sharded(lambda: around(ODD_PARTS[part]())).train(range(3))


@distributed(world_size=4)
def test_parameters_of_many_kinds_live_in_one_model() -> None:
    Sharded(lambda: around(every_odd_part())).train(range(3))


@distributed(world_size=4)
def test_there_may_be_more_ranks_than_elements() -> None:
    def small() -> nn.Module:
        return nn.Sequential(linear(INPUTS, 1), Uses(torch.ones(1, 1, dtype=DTYPE), torch.matmul), linear(1, 3))

    Sharded(small, adamw).train(range(3))


@distributed(world_size=2)
@pytest.mark.parametrize("make_model", MODULES.values(), ids=MODULES)
def test_every_kind_of_module_is_trained_as_in_one_process(make_model: Callable[[], nn.Module]) -> None:
    Sharded(make_model).train(range(3))


# Which parameters are used


@distributed(world_size=3)
def test_a_parameter_unused_on_some_ranks_counts_as_zero_there() -> None:
    Sharded(Chain).train(range(4), use=lambda rank: [(0, 1), (0, 2)][rank % 2])


@distributed(world_size=2)
def test_a_parameter_used_nowhere_keeps_no_gradient_and_does_not_decay() -> None:
    training = Sharded(Chain, adamw)
    before = training.module.links[2].weight.detach().clone()
    training.train(range(3), use=lambda _rank: (0, 1))
    assert training.module.links[2].weight.grad is None
    assert torch.equal(training.module.links[2].weight, before)


@distributed(world_size=2)
def test_parameters_used_in_some_steps_keep_no_old_gradients() -> None:
    training = Sharded(Chain)
    for step in range(5):
        training.train([step], use=lambda rank, step=step: ((step + rank) % 3, (step + 1 + rank) % 3))


@distributed(world_size=2)
def test_ranks_may_use_parameters_in_different_orders() -> None:
    Sharded(Chain).train(range(3), use=lambda rank: [(0, 1, 2), (2, 0, 1)][rank])


@distributed(world_size=2)
def test_a_module_may_be_used_several_times_in_a_forward() -> None:
    Sharded(Chain).train(range(3), use=lambda _: (0, 1, 0, 0, 2, 1))


@distributed(world_size=2)
def test_a_rank_whose_loss_uses_no_parameter_keeps_up(ddp: DDPContext) -> None:
    model = FSDP.wrap(seeded(mlp, seed=0))
    twin = seeded(mlp, seed=0)
    if ddp.rank == 0:
        loss(model, [batch(0, 0)]).backward()
    else:
        model(batch(0, 1)[0])
    FSDP.after_backward(model, sgd(model))
    (loss(twin, [batch(0, 0)]) / 2).backward()
    for mine, twins in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(whole(mine.grad, twins), twins.grad, 1e-12, "gradient")


@distributed(world_size=2)
def test_parameters_may_be_frozen_and_unfrozen_between_steps() -> None:
    training = Sharded(lambda: around(ODD_PARTS["frozen"]()))
    for step in range(4):
        for model in (training.module, training.twin):
            model[2].requires_grad_(step % 2 == 1)  # frozen when it was wrapped
            model[0].requires_grad_(step != 2)
        training.train([step])
