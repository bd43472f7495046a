"""An infinity on any rank makes all ranks skip the step, and scales stay equal."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from pytest_ddp import DDPContext, distributed
from reference.adapters import get_sharded_optimizer
from reference.training.mixed_precision import LockstepGradScaler, precision

CPU = torch.device("cpu")


def scaler() -> LockstepGradScaler:
    return LockstepGradScaler("cpu", init_scale=8.0, growth_interval=2)


def backward(scaler: LockstepGradScaler, weight: Tensor, slope: float) -> None:
    """Set the weight's gradient to this value, scaled."""
    weight.grad = None
    torch.autograd.backward(scaler.scale((weight * slope).sum()))


@distributed(world_size=[1, 2, 4])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_infinity_on_one_rank_skips_the_step_on_all(bad, ddp: DDPContext):
    weight = nn.Parameter(torch.ones(3))
    optimizer, own = SGD([weight], lr=0.5), scaler()
    backward(own, weight, bad if ddp.rank == ddp.world_size - 1 else 1.0)
    own.step(optimizer)
    own.update()
    assert (weight.tolist(), own.get_scale()) == ([1.0] * 3, 4.0)
    for scale in (4.0, 8.0):  # it grows after two good steps, on all ranks
        backward(own, weight, 1.0)
        own.step(optimizer)
        own.update()
        assert own.get_scale() == scale
    assert weight.tolist() == [0.0] * 3


@distributed(world_size=3)
def test_a_rank_without_gradients_skips_or_steps_as_the_others(ddp: DDPContext):
    weight = nn.Parameter(torch.ones(2))
    optimizer, own = SGD([weight], lr=1.0), scaler()
    for slope, scale in ((float("inf"), 4.0), (1.0, 4.0), (1.0, 8.0)):
        weight.grad = None
        own.scale(torch.ones(()))  # a rank that owns no parameter scales its loss, too
        if ddp.rank != 1:
            backward(own, weight, slope)
        own.step(optimizer)
        own.update()
        assert own.get_scale() == scale
    assert weight.tolist() == ([1.0] * 2 if ddp.rank == 1 else [-1.0] * 2)


@distributed(world_size=2)
def test_clipping_between_unscaling_and_step_is_possible():
    weight = nn.Parameter(torch.ones(4))
    optimizer, own = SGD([weight], lr=1.0), scaler()
    backward(own, weight, 3.0)
    own.unscale_(optimizer)
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4
    nn.utils.clip_grad_norm_([weight], 1.0)
    own.step(optimizer)
    torch.testing.assert_close(weight.detach(), torch.full((4,), 0.5))


def fused(parameters: list[Tensor]) -> Optimizer:
    return AdamW(parameters, lr=0.5, fused=True)


def sharded(parameters: list[Tensor]) -> Optimizer:
    return get_sharded_optimizer(parameters, AdamW, lr=0.5)


@distributed(world_size=2)
@pytest.mark.parametrize("make", [fused, sharded])
def test_optimizers_that_unscale_by_themselves_stay_in_step(make, ddp: DDPContext):
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer, own = make(weights), scaler()
    for weight in weights:
        weight.grad = torch.full_like(weight, float("inf") if ddp.rank == 1 and weight is weights[0] else 8.0)
    own.scale(torch.ones(()))
    own.step(optimizer)
    own.update()
    assert [w.tolist() for w in weights] == [[1.0] * 2, [1.0] * 3]
    assert own.get_scale() == 4.0


@distributed(world_size=2)
def test_its_state_comes_back_from_a_checkpoint_and_is_the_same_on_all_ranks(ddp: DDPContext):
    weight = nn.Parameter(torch.ones(1))
    optimizer, own = SGD([weight], lr=1.0), scaler()
    backward(own, weight, float("inf") if ddp.rank else 1.0)
    own.step(optimizer)
    own.update()
    states = [None, None]
    dist.all_gather_object(states, own.state_dict())
    assert states[0] == states[1]
    again = scaler()
    again.load_state_dict(own.state_dict())
    assert again.get_scale() == own.get_scale() == 4.0


@distributed(world_size=2)
def test_without_scaling_ranks_do_not_communicate_and_take_every_step(ddp: DDPContext):
    context, own = precision("bf16", CPU)
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = SGD([weight], lr=1.0)
    for _ in range(2):  # the context can be entered again
        with context:
            out = torch.eye(2) @ weight
    assert out.dtype == torch.bfloat16
    if ddp.rank == 0:  # on one rank alone, where a collective would hang
        torch.autograd.backward(own.scale(out.sum()))
        own.step(optimizer)
        own.update()
        assert weight.tolist() == [[0.0] * 2] * 2


def test_full_precision_leaves_dtypes_alone():
    context, own = precision("off", CPU)
    with context:
        assert (torch.eye(2) @ torch.eye(2)).dtype == torch.float32
    assert not own.is_enabled()


def test_float16_is_for_gpus():
    with pytest.raises(ValueError, match="amp='fp16' needs a GPU, but this rank trains on the CPU: use amp='bf16'"):
        precision("fp16", CPU)
