"""The sharded optimizer is a torch optimizer: closures, `zero_grad`, hooks, copies, and what it refuses."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_unsharded import BesideUnsharded, parameters, two_groups
from reference_models import mlp
from side_by_side import SideBySide, batch, loss
from torch import Tensor
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from pytest_ddp import DDPContext, distributed
from reference.adapters import get_sharded_optimizer


def trained() -> BesideUnsharded:
    beside = BesideUnsharded(AdamW, two_groups, lr=0.02)
    beside.train(range(2))
    return beside


# Closures and zero_grad


@distributed(world_size=2)
def test_a_closure_is_called_once_with_gradients_and_its_value_returned(ddp: DDPContext) -> None:
    training = SideBySide(
        mlp,
        lambda model: get_sharded_optimizer(model.parameters(), SGD, lr=0.1),
        lambda model: SGD(model.parameters(), lr=0.1),
    )
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
    beside = BesideUnsharded(AdamW)
    beside.draw_gradients(0)
    assert beside.sharded.step() is None


@distributed(world_size=2)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_every_gradient_on_every_rank(set_to_none: bool) -> None:  # noqa: FBT001  a parameter of the test
    beside = BesideUnsharded(AdamW, two_groups)
    beside.draw_gradients(0)
    beside.sharded.zero_grad(set_to_none=set_to_none)
    for parameter in beside.mine:
        assert parameter.grad is None if set_to_none else not parameter.grad.any()


# Hooks


@distributed(world_size=2)
def test_the_hooks_of_torchs_optimizers_are_called_once() -> None:
    beside = trained()
    calls: list[str] = []
    beside.sharded.register_step_pre_hook(lambda *_: calls.append("before step"))
    beside.sharded.register_step_post_hook(lambda *_: calls.append("after step"))
    beside.sharded.register_state_dict_post_hook(lambda *_: calls.append("state_dict"))
    beside.sharded.register_load_state_dict_pre_hook(lambda *_: calls.append("before load"))
    beside.sharded.register_load_state_dict_post_hook(lambda *_: calls.append("after load"))
    beside.train([2])
    beside.sharded.consolidate_state_dict()
    beside.sharded.load_state_dict(beside.sharded.state_dict())
    assert calls == ["before step", "after step", "state_dict", "before load", "after load"]


@distributed(world_size=2)
def test_a_step_hook_sees_all_parameters_updated() -> None:
    beside = trained()
    seen: list[Tensor] = []
    beside.sharded.register_step_post_hook(lambda *_: seen.extend(p.detach().clone() for p in beside.mine))
    beside.train([2])
    assert all(torch.equal(one, other) for one, other in zip(seen, beside.mine, strict=True))


# Copies


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301  our own bytes


@distributed(world_size=2)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
def test_a_copy_with_its_parameters_trains_on(copied: Callable[[Any], Any]) -> None:
    beside = trained()
    old = [parameter.detach().clone() for parameter in beside.mine]
    original, before = beside.sharded, beside.mine
    beside.mine, beside.sharded = copied((beside.mine, beside.sharded))
    beside.train(range(2, 4))
    assert all(torch.equal(one, other) for one, other in zip(before, old, strict=True))
    assert original.state_dict()["state"].keys() == beside.sharded.state_dict()["state"].keys()


# Misuse


@distributed(world_size=1)
def test_an_optimizer_that_looks_at_all_parameters_together_is_refused() -> None:
    with pytest.raises(TypeError, match="LBFGS cannot be sharded: its update of one parameter depends on all others"):
        get_sharded_optimizer(parameters(), LBFGS)


@distributed(world_size=2)
@pytest.mark.parametrize(
    ("given", "optimizer_cls", "options", "message"),
    [
        (parameters, SGD, {"lr": -1.0}, "Invalid learning rate"),
        (list, SGD, {"lr": 1.0}, "empty parameter list"),
    ],
)
def test_bad_arguments_are_refused_as_by_the_wrapped_optimizer(
    given: Callable[[], Any], optimizer_cls: type[Optimizer], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        get_sharded_optimizer(given(), optimizer_cls, **options)
