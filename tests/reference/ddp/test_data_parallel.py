"""Every data-parallel wrapper behaves as the module that it wraps: calls, buffers, state and copies."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference_collectives import recorded
from reference_models import INPUTS, Buffered, linear, mlp, seeded
from reference_wrappers import ONE_OF_EACH, Wrapper
from side_by_side import SideBySide, assert_freed, assert_same_on_all_ranks, batch, loss, sgd
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pytest_ddp import DDPContext, distributed
from pytest_ddp.rank.collective_hooks import watch_collectives

pytestmark = pytest.mark.parametrize("wrapper", ONE_OF_EACH.values(), ids=ONE_OF_EACH)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


# Calls and buffers


class Documents(nn.Module):
    """A module with arguments of every kind and an output of nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(INPUTS)

    def forward(self, x: Tensor, *more: float, scale: float, **others: Any) -> dict[str, Any]:
        return {"out": (self.layer(x) * scale, [more]), "others": others}


@distributed(world_size=2)
def test_arguments_and_outputs_pass_through_as_they_are(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(seeded(Documents, seed=ddp.rank))
    inputs, note = torch.ones(1, INPUTS, dtype=torch.float64), object()
    output = model(inputs, 1.0, 2.0, scale=3.0, note=note)
    tensor, rest = output["out"]
    assert torch.equal(tensor, seeded(Documents, seed=0).layer(inputs) * 3.0)
    assert (type(output["out"]), rest, output["others"]) == (tuple, [(1.0, 2.0)], {"note": note})


@distributed(world_size=2)
def test_a_wrapper_without_references_is_freed_with_its_parameters(wrapper: Wrapper) -> None:
    assert_freed(wrapper, mlp)


@distributed(world_size=2)
def test_every_training_forward_uses_the_buffers_of_rank_0(wrapper: Wrapper, ddp: DDPContext) -> None:
    training = SideBySide(Buffered, wrapper=wrapper)
    for step in range(3):
        training.train([step])
        training.module.scale = training.module.scale + step + ddp.rank  # a new tensor, different on each rank
        training.module.count += ddp.rank
        training.twin.scale = training.twin.scale + step
    assert training.twin.count - seeded(Buffered, seed=0).count == 3
    assert training.module.count == training.twin.count + ddp.rank


@distributed(world_size=2)
def test_evaluation_needs_no_other_rank(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(seeded(Buffered, seed=ddp.rank))
    seen: list[object] = []
    with watch_collectives(seen.append), torch.no_grad():
        model.eval()(batch(0, ddp.rank)[0])
        model.train()(batch(0, ddp.rank)[0])
    assert not seen


@distributed(world_size=2)
def test_batch_norm_allows_two_forwards_before_backward(wrapper: Wrapper, ddp: DDPContext) -> None:
    model = wrapper.wrap(nn.Sequential(linear(INPUTS), nn.BatchNorm1d(6, dtype=torch.float64)))
    twice = model(batch(0, ddp.rank)[0]) + model(batch(1, ddp.rank)[0])
    twice.square().mean().backward()
    wrapper.after_backward(model, sgd(model))
    assert_same_on_all_ranks(p.grad for p in model.parameters())


@distributed(world_size=2)
def test_a_model_may_be_converted_after_wrapping(wrapper: Wrapper, ddp: DDPContext) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    training.train([0])
    training.ddp_model.float()
    training.twin.float()
    batches = [tuple(tensor.float() for tensor in batch(1, rank)) for rank in range(ddp.world_size)]
    training.zero_grad()
    loss(training.ddp_model, [batches[ddp.rank]]).backward()
    training.finish()
    loss(training.twin, batches).backward()
    training.assert_gradients_equal()


# State


@distributed(world_size=2)
def test_state_goes_into_the_bare_module_and_comes_from_it(wrapper: Wrapper, ddp: DDPContext) -> None:
    model, bare = wrapper.wrap(seeded(Buffered, seed=ddp.rank)), seeded(Buffered, seed=7)
    assert list(model.state_dict()) == list(bare.state_dict())
    model.load_state_dict(bare.state_dict())
    inputs = batch(0, ddp.rank)[0]
    assert torch.equal(model(inputs), seeded(Buffered, seed=7)(inputs))
    other = seeded(Buffered, seed=8)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(inputs), model.eval()(inputs))


@distributed(world_size=2)
def test_state_that_does_not_fit_is_refused(wrapper: Wrapper) -> None:
    model = wrapper.wrap(mlp())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    assert model.load_state_dict({}, strict=False).missing_keys == list(mlp().state_dict())


# Copies


def pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))  # noqa: S301  our own


@distributed(world_size=2)
@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickled])
@pytest.mark.parametrize("during", ["an exchange", "no_sync"])
def test_a_copy_trains_by_itself(wrapper: Wrapper, make_copy: Callable[[nn.Module], nn.Module], during: str) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    if during == "an exchange":
        training.local_loss(77).backward()
        duplicate = make_copy(training.ddp_model)
        training.finish()
    else:
        with training.ddp_model.no_sync():
            duplicate = make_copy(training.ddp_model)
    original = [parameter.detach().clone() for parameter in training.module.parameters()]
    before, training.ddp_model, training.module = training.module, duplicate, duplicate.module
    training.optimizer = sgd(training.module)
    training.train(range(2))
    assert all(map(torch.equal, before.parameters(), original))


@distributed(world_size=2)
@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickled])
def test_a_copy_sends_gradients_when_the_original_does(
    wrapper: Wrapper, make_copy: Callable[[nn.Module], nn.Module]
) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    sent = []
    for model in (training.ddp_model, make_copy(training.ddp_model)):
        training.ddp_model = model
        loss = training.local_loss(0)
        with recorded() as seen:
            loss.backward()
        sent.append([collective.bytes for collective in seen])
        training.finish()
    assert sent[0] == sent[1]
