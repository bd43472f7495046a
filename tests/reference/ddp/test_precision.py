"""A mean of gradients is as exact as its dtype allows."""

import pytest
import torch
from reference_models import mlp, seeded
from reference_wrappers import ONE_OF_EACH, Wrapper
from side_by_side import assert_same_on_all_ranks, batch, sgd
from torch import Tensor, nn

from pytest_ddp import DDPContext, distributed

pytestmark = pytest.mark.parametrize("wrapper", ONE_OF_EACH.values(), ids=ONE_OF_EACH)


def backward(model: nn.Module, rank: int, dtype: torch.dtype) -> list[Tensor]:
    inputs, _ = batch(0, rank)
    model(inputs.to(dtype)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@distributed(world_size=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_mean_is_off_by_the_rounding_of_its_additions(wrapper: Wrapper, dtype: torch.dtype, ddp: DDPContext) -> None:
    """Each of W terms is rounded once when it is scaled, and each of W - 1 sums is rounded once."""
    locals_ = [backward(seeded(mlp, seed=0).to(dtype), rank, dtype) for rank in range(ddp.world_size)]
    model = wrapper.wrap(seeded(mlp, seed=0).to(dtype))
    backward(model, ddp.rank, dtype)
    wrapper.after_backward(model, sgd(model))
    unit, smallest = torch.finfo(dtype).eps / 2, torch.finfo(dtype).smallest_normal
    for mean, *shares in zip((p.grad for p in model.parameters()), *locals_, strict=True):
        exact = torch.stack([share.double() for share in shares])
        allowed = (ddp.world_size + 1) * unit * exact.abs().mean(0) + smallest
        assert ((mean.double() - exact.mean(0)).abs() <= allowed).all()
    assert_same_on_all_ranks(p.grad for p in model.parameters())
