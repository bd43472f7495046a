"""FSDP with several backwards per step, aborted passes, and modules with any inputs and outputs."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fsdp_models import Checkpointed, Found, Returning
from fsdp_side_by_side import Sharded
from reference_models import (
    Buffered,
    Chain,
    mlp,
)
from side_by_side import assert_close, batch
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from pytest_ddp import DDPContext, distributed


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


# Gradients over several backwards


@distributed(world_size=2)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("after_each", [True, False])
def test_gradients_of_several_backwards_add_up(*, after_each: bool, set_to_none: bool) -> None:
    training = Sharded(Chain)
    for step in range(3):
        training.zero_grad(set_to_none=set_to_none)
        for number in (step, 10 + step):
            training.local_loss(number, use=lambda _, number=number: (0, number % 3)).backward()
            if after_each:
                training.finish()
            training.twin_backward(number, use=lambda _, number=number: (0, number % 3))
        training.finish()
        training.update()


@distributed(world_size=2)
def test_two_forwards_may_go_before_two_backwards_or_before_one() -> None:
    training = Sharded(mlp)
    for together in (False, True):
        training.zero_grad()
        first, second = training.local_loss(0), training.local_loss(1)
        for part in [first + second] if together else [first, second]:
            part.backward()
        training.finish()
        training.twin_backward(0)
        training.twin_backward(1)
        training.update()


@distributed(world_size=2)
def test_a_retained_graph_may_be_used_twice() -> None:
    training = Sharded(mlp)
    local_loss = training.local_loss(0)
    local_loss.backward(retain_graph=True)
    local_loss.backward()
    training.finish()
    for _ in range(2):
        training.twin_backward(0)
    training.update()


@distributed(world_size=2)
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("frozen", [True, False])
def test_activation_checkpointing_changes_nothing(*, use_reentrant: bool, times: int, frozen: bool) -> None:
    training = Sharded(lambda: Checkpointed(use_reentrant=use_reentrant, frozen=frozen))
    training.train(range(3), times=lambda _: times)


@distributed(world_size=2)
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_whole_model_may_be_checkpointed(*, use_reentrant: bool) -> None:
    training = Sharded(mlp)
    for step in range(3):
        inputs, targets = batch(step, dist.get_rank())
        outputs = checkpoint(training.ddp_model, inputs.requires_grad_(), use_reentrant=use_reentrant)
        training.zero_grad()
        nn.functional.mse_loss(outputs, targets).backward()
        training.finish()
        training.twin_backward(step)
        training.update()


# Aborted passes


class Aborted(Exception):  # noqa: N818  not an error
    pass


def abort(*_: Any) -> None:
    raise Aborted


@distributed(world_size=2)
@pytest.mark.parametrize("layers", [(0, 0), (2, 2), (4, 2), (0, 4)])
@pytest.mark.parametrize("first_step", [0, 1])
def test_an_aborted_forward_leaves_no_trace(ddp: DDPContext, layers: tuple[int, int], first_step: int) -> None:
    training = Sharded(mlp)
    training.train(range(first_step))
    hook = training.module[layers[ddp.rank]].register_forward_hook(abort)
    with pytest.raises(Aborted):
        training.local_loss(77)
    hook.remove()
    training.train([1, 2])


@distributed(world_size=2)
@pytest.mark.parametrize("layers", [(1, 1), (3, 3), (3, 1), (0, 3)])
@pytest.mark.parametrize("first_step", [0, 1])
def test_an_aborted_backward_leaves_no_trace(ddp: DDPContext, layers: tuple[int, int], first_step: int) -> None:
    training = Sharded(mlp)
    training.train(range(first_step))
    training.zero_grad()
    layer = training.module[layers[ddp.rank]]
    hook = layer.register_forward_hook(lambda _, __, output: output.register_hook(abort) and None)
    with pytest.raises(Aborted):
        training.local_loss(77).backward()
    hook.remove()
    training.train([1, 2])


# Inputs, outputs and buffers


@distributed(world_size=2)
@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda x: (None, x), lambda output: output[1]),
        (lambda x: {"a": [x], "n": 1}, lambda output: output["a"][0]),
        (Found, lambda output: output.hidden),
        (lambda x: SimpleNamespace(of=[SimpleNamespace(hidden=x)]), lambda output: output.of[0].hidden),
    ],
    ids=["tuple", "dict", "dataclass", "object"],
)
def test_arguments_and_outputs_are_of_any_kind(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
    Sharded(lambda: Returning(pack, unpack)).train(range(2))


@distributed(world_size=2)
def test_every_training_forward_uses_the_buffers_of_rank_0(ddp: DDPContext) -> None:
    training = Sharded(Buffered)
    for step in range(2):
        training.train([step])
        training.module.scale = training.module.scale + step + ddp.rank  # a new tensor, different on each rank
        training.twin.scale = training.twin.scale + step


@distributed(world_size=2)
def test_evaluation_between_forward_and_backward_changes_nothing(ddp: DDPContext) -> None:
    training = Sharded(mlp)
    training.train([0])
    training.zero_grad()
    local_loss = training.local_loss(1)
    with torch.no_grad():
        outputs = training.ddp_model.eval()(batch(5, ddp.rank)[0])
        assert_close(outputs, training.twin(batch(5, ddp.rank)[0]), 1e-12, "output")
    local_loss.backward()
    training.finish()
    training.twin_backward(1)
    training.update()


@distributed(world_size=2)
def test_a_backward_with_create_graph_is_refused_and_leaves_no_trace(ddp: DDPContext) -> None:
    training = Sharded(mlp)
    inputs = batch(0, ddp.rank)[0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"create_graph=True: the graph .* Compute second derivatives without FSDP"):
        torch.autograd.grad(training.ddp_model(inputs).sum(), inputs, create_graph=True)
    training.train([0, 1])


@distributed(world_size=2)
def test_submodules_may_be_called_by_themselves() -> None:
    training = Sharded(mlp)
    for _ in range(2):
        assert_close(training.module[0](batch(0, 0)[0]), training.twin[0](batch(0, 0)[0]), 1e-12, "output")
    training.train([0, 1])
