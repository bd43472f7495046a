"""The sharded optimizer's groups are those of the optimizer that it wraps: options, additions, schedulers, shares."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_unsharded import BesideUnsharded, options_of, owned, parameters, two_groups
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from pytest_ddp import DDPContext, distributed

CLASSES: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adamw": (AdamW, {"lr": 0.02, "weight_decay": 0.1}),
}
pytestmark = pytest.mark.parametrize("name", CLASSES)


def beside(name: str, *arguments: Any, **more: Any) -> BesideUnsharded:
    optimizer_cls, options = CLASSES[name]
    return BesideUnsharded(optimizer_cls, *arguments, **more, **options)


# Options


@distributed(world_size=[2, 3])
def test_groups_have_options_of_their_own(name: str) -> None:
    beside(name, two_groups).train(range(4))


@distributed(world_size=2)
def test_it_shows_all_groups_and_defaults_like_the_unsharded_optimizer(name: str) -> None:
    shown = beside(name, two_groups)
    assert isinstance(shown.sharded, Optimizer)
    assert shown.sharded.defaults == shown.unsharded.defaults
    assert options_of(shown.sharded) == options_of(shown.unsharded)
    groups = [parameter for group in shown.sharded.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in groups] == [id(parameter) for parameter in shown.mine]
    assert f"lr: {shown.sharded.param_groups[1]['lr']}" in repr(shown.sharded)


@distributed(world_size=2)
@pytest.mark.parametrize(
    "form",
    [
        iter,
        lambda them: [(f"p{number}", parameter) for number, parameter in enumerate(them)],
        lambda them: ({"params": parameter} for parameter in them),
        lambda them: [{"params": them[:2]}, {"params": []}, {"params": iter(them[2:])}],
    ],
    ids=["iterator", "named", "groups_of_one", "empty_group"],
)
def test_parameters_come_in_every_form_that_torch_takes(name: str, form: Callable[[list[nn.Parameter]], Any]) -> None:
    taken = beside(name, form)
    taken.train(range(2))
    assert options_of(taken.sharded) == options_of(taken.unsharded)


@distributed(world_size=2)
def test_edits_of_the_options_take_effect_at_the_next_step(name: str) -> None:
    edited = beside(name, two_groups)
    edited.train([0])
    for _, optimizer in edited.both:
        optimizer.param_groups[0]["lr"] *= 3
        optimizer.param_groups[1]["weight_decay"] = 0.5
        optimizer.param_groups[1]["maximize"] = True
    edited.train([1, 2])


# Schedulers

SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.3),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=4),
    "one_cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=8),  # moves momentum or betas too
}


@distributed(world_size=2)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_drive_it(name: str, scheduler: str) -> None:
    driven = beside(name, two_groups)
    schedulers = [SCHEDULERS[scheduler](optimizer) for _, optimizer in driven.both]
    for step in range(6):
        driven.train([step])
        for each in schedulers:
            each.step()
        assert options_of(driven.sharded) == options_of(driven.unsharded)


@distributed(world_size=2)
def test_a_scheduler_that_watches_the_loss_drives_it(name: str) -> None:
    driven = beside(name, two_groups)
    schedulers = [ReduceLROnPlateau(optimizer, patience=0, factor=0.2) for _, optimizer in driven.both]
    for step, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
        driven.train([step])
        for each in schedulers:
            each.step(loss)
    assert driven.sharded.param_groups[0]["lr"] < 0.3
    assert options_of(driven.sharded) == options_of(driven.unsharded)


# Adding groups


@distributed(world_size=[2, 3])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_group_may_be_added_at_any_time(name: str, steps_before: int) -> None:
    grown = beside(name, lambda them: them[:5])
    grown.train(range(steps_before))
    before = {number: id(state) for number, state in grown.sharded.state_dict()["state"].items()}
    for these, optimizer in grown.both:
        optimizer.add_param_group({"params": these[5:], "lr": 0.2})
    after = {number: id(state) for number, state in grown.sharded.state_dict()["state"].items()}
    assert after == before
    assert options_of(grown.sharded) == options_of(grown.unsharded)
    grown.train(range(steps_before, 5))


@distributed(world_size=2)
def test_edits_just_before_a_group_is_added_are_kept(name: str) -> None:
    edited = beside(name, lambda them: [{"params": them[:2]}])
    edited.train([0])
    for these, optimizer in edited.both:
        optimizer.param_groups[0]["lr"] *= 3
        optimizer.add_param_group({"params": these[2:], "lr": 0.05})
    assert options_of(edited.sharded) == options_of(edited.unsharded)
    edited.train([1, 2])


@distributed(world_size=2)
def test_a_parameter_cannot_be_in_two_groups(name: str) -> None:
    whole = beside(name)
    with pytest.raises(ValueError, match="more than one parameter group"):
        whole.sharded.add_param_group({"params": whole.mine[0]})
    whole.train([0])


# Shares


@distributed(world_size=[1, 2, 4])
def test_each_state_lives_on_one_rank(name: str, ddp: DDPContext) -> None:
    trained = beside(name, two_groups)
    trained.train([0])
    shares = owned(trained.sharded)
    assert sorted(number for share in shares for number in share) == list(range(len(trained.mine)))
    assert all(shares), f"a rank has nothing: {shares}, seen from rank {ddp.rank}"


ALTERNATING = [(8, 8), (8,)] * 12  # dealt out in turn, two ranks would get all weights, and all biases


@distributed(world_size=[2, 3, 4])
@pytest.mark.parametrize("form", [list, lambda them: [{"params": each} for each in them]], ids=["one", "each_its_own"])
def test_bytes_of_state_are_within_five_percent_of_an_even_share(
    name: str, form: Callable[[list[nn.Parameter]], Any], ddp: DDPContext
) -> None:
    trained = beside(name, form, lambda: parameters(ALTERNATING))
    trained.train([0])
    tensors = [each for state in trained.sharded.state.values() for each in state.values()]
    whole = [each for state in trained.unsharded.state.values() for each in state.values()]
    mine, even = sum(each.nbytes for each in tensors), sum(each.nbytes for each in whole) / ddp.world_size
    assert mine <= 1.05 * even, f"rank {ddp.rank} holds {mine} bytes, an even share is {even}"


@distributed(world_size=2)
def test_the_largest_parameter_is_updated_first(name: str, ddp: DDPContext) -> None:
    trained = beside(name, two_groups)
    trained.train([0])
    for group in trained.sharded.param_groups:
        mine = [p.nbytes for p in trained.sharded.state if any(p is each for each in group["params"])]
        assert mine == sorted(mine, reverse=True), f"on rank {ddp.rank}"


@distributed(world_size=2)
def test_bytes_count_not_elements(name: str, ddp: DDPContext) -> None:
    """Two float64 tensors weigh as much as four float32 ones of their size."""
    dtypes = [torch.float64, torch.float64, *[torch.float32] * 4]
    trained = beside(name, list, lambda: parameters([(10,)] * 6, dtypes))
    trained.train([0])
    share = sum(trained.mine[number].nbytes for number in owned(trained.sharded)[ddp.rank])
    assert share == sum(parameter.nbytes for parameter in trained.mine) / 2


@distributed(world_size=2)
def test_frozen_parameters_weigh_nothing(name: str, ddp: DDPContext) -> None:
    """They have no state: a large frozen one must not leave one rank with all the state."""

    def half_frozen() -> list[nn.Parameter]:
        return [p.requires_grad_(number != 0) for number, p in enumerate(parameters([(100,), (10,), (10,)]))]

    trained = beside(name, list, half_frozen)
    trained.train([0])
    assert len(owned(trained.sharded)[ddp.rank]) == 1
