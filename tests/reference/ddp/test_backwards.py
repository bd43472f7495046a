"""Several backwards before an averaging, several averagings before a step, and aborted backwards."""

import pytest
import torch
from reference_models import INPUTS, Chain, linear, mlp
from reference_wrappers import OVERLAPPED, WRAPPERS, Wrapper
from side_by_side import SideBySide
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from pytest_ddp import DDPContext, distributed

pytestmark = pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


# Gradients over several backwards


@distributed(world_size=2)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_both_ways_to_clear_gradients_leave_nothing_behind(wrapper: Wrapper, set_to_none: bool) -> None:  # noqa: FBT001  a parameter of the test
    training = SideBySide(Chain, wrapper=wrapper)
    for step in range(3):
        training.zero_grad(set_to_none=set_to_none)
        training.backward(step, use=lambda rank, step=step: [(0,), (0, step)][rank])
        training.update()


@distributed(world_size=2)
def test_gradients_of_two_averaged_backwards_add_up(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    for step in range(3):
        training.zero_grad()
        training.backward(step)
        training.backward(10 + step)
        training.update()


@distributed(world_size=2)
@pytest.mark.parametrize("forwards", ["in_turn", "both_first"])
def test_two_backwards_may_share_one_averaging(wrapper: Wrapper, forwards: str) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    for step in range(3):
        training.zero_grad()
        losses = (training.local_loss(number) for number in (step, 10 + step))
        for local_loss in losses if forwards == "in_turn" else list(losses):
            local_loss.backward()
        training.finish()
        training.twin_backward(step)
        training.twin_backward(10 + step)
        training.update()


@distributed(world_size=2)
def test_a_retained_graph_may_be_used_twice(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    local_loss = training.local_loss(0)
    local_loss.backward(retain_graph=True)
    local_loss.backward()
    training.finish()
    for _ in range(2):
        training.twin_backward(0)
    training.update()


class Checkpointed(nn.Module):
    """A layer whose parameters become ready several times in one backward, by reentrant checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.often, self.last = linear(INPUTS), linear(), linear(outputs=3)

    def forward(self, x: Tensor, *, times: int) -> Tensor:
        hidden = self.first(x)
        for _ in range(times):
            hidden = checkpoint(self.often, torch.tanh(hidden), use_reentrant=True)
        return self.last(hidden)


@distributed(world_size=2)
@pytest.mark.parametrize("times", [(1, 1), (2, 2), (1, 3)])
def test_a_gradient_that_changes_after_its_launch_is_sent_again_or_refused(
    wrapper: Wrapper, times: tuple[int, int], ddp: DDPContext
) -> None:
    training = SideBySide(Checkpointed, wrapper=wrapper)
    refuses = times != (1, 1) and wrapper in (
        OVERLAPPED["ddp_bucketed-one_parameter_each"],
        OVERLAPPED["ddp_bucketed-several_buckets"],
    )
    if refuses and times[ddp.rank] > 1:
        training.zero_grad()
        message = (
            rf"another gradient of the parameter 'often\.\w+' on rank {ddp.rank} after the parameter's bucket was sent"
        )
        with pytest.raises(RuntimeError, match=message):
            training.local_loss(0, times=lambda rank: times[rank]).backward()
    if not refuses:
        training.train(range(2), times=lambda rank: times[rank])


class Aborted(Exception):  # noqa: N818  not an error
    pass


@distributed(world_size=2)
@pytest.mark.parametrize(("layers", "set_to_none"), [((2, 2), True), ((2, 0), True), ((2, 0), False)])
def test_an_aborted_backward_leaves_no_trace(
    wrapper: Wrapper,
    ddp: DDPContext,
    layers: tuple[int, int],
    set_to_none: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    def abort(_gradient: Tensor) -> None:
        raise Aborted

    training = SideBySide(mlp, wrapper=wrapper)
    training.train([0])
    training.zero_grad(set_to_none=set_to_none)
    hook = training.module[layers[ddp.rank]].weight.register_hook(abort)
    with pytest.raises(Aborted):
        training.local_loss(77).backward()
    hook.remove()
    for step in (1, 2):
        training.zero_grad(set_to_none=set_to_none)
        training.backward(step)
        training.update()
