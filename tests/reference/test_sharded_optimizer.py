"""The sharded optimizer trains as the optimizer that it wraps, and each rank holds a share of the state."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reference_models import DTYPE, WIDTH, Chain, around, every_odd_part, linear, mlp, seeded
from reference_wrappers import WRAPPERS, Wrapper
from side_by_side import SideBySide, assert_close, assert_same_on_all_ranks, batch, loss
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from pytest_ddp import DDPContext, distributed
from pytest_ddp.collectives import Collective, watch_collectives
from reference.adapters import get_sharded_optimizer

OptimizerClass = Callable[..., Optimizer]
Parameters = Callable[[nn.Module], Any]

OPTIMIZERS: dict[str, OptimizerClass] = {
    "sgd_momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "sgd_nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
    "adam_amsgrad": partial(Adam, lr=0.02, amsgrad=True, maximize=True),
    "rmsprop_centered": partial(RMSprop, lr=0.01, centered=True, momentum=0.5, eps=1e-3),
    "nadam": partial(NAdam, lr=0.02),
    "adagrad": partial(Adagrad, lr=0.05),  # has state before its first step
}
ADAMW, NESTEROV = OPTIMIZERS["adamw"], OPTIMIZERS["sgd_nesterov"]


def sharded(optimizer: OptimizerClass, parameters: Any) -> Optimizer:
    return get_sharded_optimizer(parameters, optimizer.func, **optimizer.keywords)


def beside_unsharded(
    optimizer: OptimizerClass,
    parameters: Parameters = nn.Module.parameters,
    make_model: Callable[[], nn.Module] = mlp,
    **options: Wrapper,
) -> SideBySide:
    """The sharded optimizer on the trained model, the one that it wraps on the twin."""
    return SideBySide(
        make_model,
        lambda model: sharded(optimizer, parameters(model)),
        lambda model: optimizer(parameters(model)),
        **options,
    )


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The first layer with options of its own, the last two layers with the defaults."""
    return [
        {"params": model[0].parameters(), "lr": 0.3, "weight_decay": 0.2},
        {"params": [*model[2].parameters(), *model[4].parameters()]},
    ]


def first_two_layers(model: nn.Module) -> list[nn.Parameter]:
    return [*model[0].parameters(), *model[2].parameters()]


def both(training: SideBySide) -> list[tuple[nn.Module, Optimizer]]:
    return [(training.module, training.optimizer), (training.twin, training.twin_optimizer)]


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


# Training


@distributed(world_size=[1, 2, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_the_unsharded_optimizer(name: str) -> None:
    training = beside_unsharded(OPTIMIZERS[name])
    training.train(range(4))
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_it_works_together_with_every_data_parallel_wrapper(wrapper: Wrapper) -> None:
    training = beside_unsharded(ADAMW, two_groups, wrapper=wrapper)
    training.train(range(4))
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_every_kind_of_parameter_is_trained() -> None:
    beside_unsharded(NESTEROV, make_model=lambda: around(every_odd_part())).train(range(3))


@distributed(world_size=2)
def test_parameters_without_a_gradient_do_not_move(ddp: DDPContext) -> None:
    training = beside_unsharded(ADAMW, make_model=Chain)
    training.train([0])
    before = training.module.links[2].weight.detach().clone()
    training.train([1, 2], use=lambda rank: [(0,), (0, 1)][rank])
    assert torch.equal(training.module.links[2].weight, before), f"on rank {ddp.rank}"
    training.train([3])


@distributed(world_size=4)
@pytest.mark.parametrize("trained", [1, 2, 3])
def test_there_may_be_more_ranks_than_parameters(trained: int) -> None:
    def parameters(model: nn.Module) -> list[nn.Parameter]:
        return list(model.parameters())[:trained]

    beside_unsharded(ADAMW, parameters).train([0])


@distributed(world_size=2)
@pytest.mark.parametrize(
    "parameters",
    [
        lambda model: iter(list(model.parameters())),
        lambda model: model.named_parameters(),
        lambda model: ({"params": parameter} for parameter in model.parameters()),
    ],
    ids=["iterator", "named", "groups_of_one"],
)
def test_parameters_come_in_every_form_that_torch_takes(parameters: Parameters) -> None:
    beside_unsharded(ADAMW, parameters).train(range(2))


@distributed(world_size=2)
def test_parameters_keep_their_storage(ddp: DDPContext) -> None:
    training = beside_unsharded(ADAMW)
    before = [parameter.data_ptr() for parameter in training.module.parameters()]
    training.train(range(2))
    assert [parameter.data_ptr() for parameter in training.module.parameters()] == before, f"on rank {ddp.rank}"


# Groups and options


@distributed(world_size=[2, 3])
@pytest.mark.parametrize("name", ["sgd_nesterov", "adamw"])
def test_groups_have_options_of_their_own(name: str) -> None:
    beside_unsharded(OPTIMIZERS[name], two_groups).train(range(4))


@distributed(world_size=2)
@pytest.mark.parametrize("name", ["sgd_nesterov", "adamw"])
def test_it_shows_all_groups_and_defaults_like_the_unsharded_optimizer(name: str) -> None:
    training = beside_unsharded(OPTIMIZERS[name], two_groups)
    assert isinstance(training.optimizer, Optimizer)
    assert training.optimizer.defaults == training.twin_optimizer.defaults
    assert options_of(training.optimizer) == options_of(training.twin_optimizer)
    shown = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in shown] == [id(parameter) for parameter in training.module.parameters()]


@distributed(world_size=2)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_group_may_be_added_at_any_time(steps_before: int) -> None:
    training = beside_unsharded(ADAMW, first_two_layers)
    training.train(range(steps_before))
    for model, optimizer in both(training):
        optimizer.add_param_group({"params": model[4].parameters(), "lr": 0.2})
    assert options_of(training.optimizer) == options_of(training.twin_optimizer)
    training.train(range(steps_before, 5))


SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.3),
    "one_cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=8),  # moves momentum or betas too
}


@distributed(world_size=2)
@pytest.mark.parametrize("name", ["sgd_nesterov", "adamw"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_drive_it(name: str, scheduler: str) -> None:
    training = beside_unsharded(OPTIMIZERS[name], two_groups)
    schedulers = [SCHEDULERS[scheduler](optimizer) for _, optimizer in both(training)]
    for step in range(6):
        training.train([step])
        for each in schedulers:
            each.step()
        assert options_of(training.optimizer) == options_of(training.twin_optimizer)


@distributed(world_size=2)
def test_edits_of_the_options_take_effect_at_the_next_step() -> None:
    training = beside_unsharded(ADAMW, two_groups)
    training.train([0])
    for _, optimizer in both(training):
        optimizer.param_groups[0]["lr"] *= 3
        optimizer.param_groups[1]["weight_decay"] = 0.5
        optimizer.param_groups[1]["betas"] = (0.5, 0.9)
    training.train([1, 2])


# Closures and zero_grad


@distributed(world_size=2)
def test_a_closure_is_called_once_with_gradients_and_its_value_returned(ddp: DDPContext) -> None:
    training = beside_unsharded(ADAMW)
    calls: list[Tensor] = []

    def closure() -> Tensor:
        calls.append(loss(training.ddp_model, [batch(len(calls), ddp.rank)]))
        calls[-1].backward()
        training.finish()
        return calls[-1]

    with torch.no_grad():  # the closure's gradients are the optimizer's business
        returned = training.optimizer.step(closure)
    assert len(calls) == 1
    assert returned is calls[0]
    training.twin_backward(0)
    training.twin_optimizer.step()
    training.assert_parameters_equal()


@distributed(world_size=2)
def test_without_a_closure_a_step_returns_none() -> None:
    training = beside_unsharded(ADAMW)
    training.backward(0)
    assert training.optimizer.step() is None


@distributed(world_size=2)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_every_gradient_on_every_rank(set_to_none: bool) -> None:  # noqa: FBT001  a parameter of the test
    training = beside_unsharded(ADAMW, two_groups)
    training.backward(0)
    training.zero_grad(set_to_none=set_to_none)
    for parameter in training.module.parameters():
        assert parameter.grad is None if set_to_none else not parameter.grad.any()


# Shares


def owned(optimizer: Optimizer) -> list[list[int]]:
    """Numbers of the parameters that each rank holds state for, in the order of the groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    shares: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(shares, [number for number, p in enumerate(parameters) if optimizer.state.get(p)])
    return shares


@distributed(world_size=[1, 2, 4])
def test_each_state_lives_on_one_rank(ddp: DDPContext) -> None:
    training = beside_unsharded(ADAMW, two_groups)
    training.train([0])
    shares = owned(training.optimizer)
    assert sorted(number for share in shares for number in share) == list(range(6))
    assert all(shares), f"a rank has nothing: {shares}, seen from rank {ddp.rank}"


@distributed(world_size=[2, 3])
def test_shares_are_balanced_by_size_whatever_the_order(ddp: DDPContext) -> None:
    """Layers alternate large weights and small biases: dealing them out in turn would give one rank all weights."""
    model = nn.Sequential(*(linear() for _ in range(5)))
    optimizer = sharded(ADAMW, model.parameters())
    model(torch.ones(1, WIDTH, dtype=DTYPE)).sum().backward()
    optimizer.step()
    sizes = [parameter.numel() for parameter in model.parameters()]
    loads = [sum(sizes[number] for number in share) for share in owned(optimizer)]
    assert max(loads) <= sum(sizes) / ddp.world_size + (1 - 1 / ddp.world_size) * max(sizes)


@distributed(world_size=2)
def test_a_step_sends_each_parameter_once() -> None:
    training = beside_unsharded(ADAMW, two_groups)
    training.backward(0)
    seen: list[Collective] = []
    with watch_collectives(seen.append):
        training.optimizer.step()
    sent = sum(collective.bytes for collective in seen if collective.op == "broadcast")
    assert sent == sum(parameter.numel() * 8 for parameter in training.module.parameters())


# Saving


def assert_states_equal(mine: dict[str, Any], twins: dict[str, Any]) -> None:
    assert mine["param_groups"] == twins["param_groups"]
    assert list(mine["state"]) == list(twins["state"])
    for number, state in twins["state"].items():
        assert list(mine["state"][number]) == list(state)
        for name, value in state.items():
            assert_close(torch.as_tensor(mine["state"][number][name]), torch.as_tensor(value), 1e-9, name)


@distributed(world_size=2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_its_state_dict_is_the_unsharded_optimizers_on_every_rank(name: str) -> None:
    training = beside_unsharded(OPTIMIZERS[name], two_groups)
    training.train(range(2))
    assert_states_equal(training.optimizer.state_dict(), training.twin_optimizer.state_dict())


@distributed(world_size=2)
@pytest.mark.parametrize("name", ["sgd_nesterov", "adamw", "nadam"])
def test_states_can_be_exchanged_with_the_unsharded_optimizer(name: str) -> None:
    training = beside_unsharded(OPTIMIZERS[name], two_groups)
    training.train(range(2))
    states = training.optimizer.state_dict(), training.twin_optimizer.state_dict()
    training.optimizer = sharded(OPTIMIZERS[name], two_groups(training.module))
    training.twin_optimizer = OPTIMIZERS[name](two_groups(training.twin))
    training.optimizer.load_state_dict(states[1])
    training.twin_optimizer.load_state_dict(states[0])
    training.train(range(2, 4))
    assert sorted(number for share in owned(training.optimizer) for number in share) == list(range(6))


@distributed(world_size=2)
def test_loading_neither_changes_nor_keeps_what_was_loaded() -> None:
    training = beside_unsharded(ADAMW, two_groups)
    training.train([0])
    saved = training.optimizer.state_dict()
    before = copy.deepcopy(saved)
    training.optimizer.load_state_dict(saved)
    training.train([1])
    assert_states_equal(saved, before)


def train(first: int, last: int, saved: dict[str, Any] | None) -> dict[str, Any]:
    """Train for some steps, from a checkpoint if there is one; return a checkpoint."""
    model = seeded(mlp, seed=0)
    optimizer = sharded(ADAMW, two_groups(model))
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in range(first, last):
        optimizer.zero_grad()
        loss(model, [batch(step, 0)]).backward()  # the same on all ranks: nothing to average
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_training_resumes_with_another_number_of_ranks(ddp_ranks: Callable[..., Any]) -> None:
    [whole] = ddp_ranks(world_size=1).run(train, 0, 4, None)
    half, _ = ddp_ranks(world_size=2).run(train, 0, 2, None)
    for resumed in ddp_ranks(world_size=3).run(train, 2, 4, half):
        assert_states_equal(resumed["optimizer"], whole["optimizer"])
        for name, value in whole["model"].items():
            assert_close(resumed["model"][name], value, 1e-9, name)


# Misuse


@distributed(world_size=1)
def test_an_optimizer_that_looks_at_all_parameters_together_is_refused() -> None:
    with pytest.raises(TypeError, match="LBFGS cannot be sharded: its update of one parameter depends on all others"):
        get_sharded_optimizer(mlp().parameters(), LBFGS)


@distributed(world_size=2)
def test_bad_options_are_refused_as_by_the_unsharded_optimizer() -> None:
    with pytest.raises(ValueError, match="Invalid learning rate"):
        get_sharded_optimizer(mlp().parameters(), SGD, lr=-1.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        get_sharded_optimizer([], SGD, lr=1.0)


@distributed(world_size=2)
def test_a_parameter_cannot_be_in_two_groups() -> None:
    training = beside_unsharded(ADAMW)
    with pytest.raises(ValueError, match="more than one parameter group"):
        training.optimizer.add_param_group({"params": training.module[0].weight})
