"""On GPUs the sharded optimizer trains as the optimizer that it wraps, over NCCL and over gloo."""

from typing import Any

import pytest
import torch
from beside_unsharded import BesideUnsharded, assert_states_equal, parameters, whole_state
from side_by_side import assert_same_on_all_ranks
from torch import nn
from torch.optim import AdamW

from pytest_ddp import DDPContext, distributed

pytestmark = pytest.mark.gpu
WAYS = [
    pytest.param({"fused": True}, marks=distributed(world_size=1, backend="nccl", device="cuda"), id="nccl-1-fused"),
    pytest.param({"capturable": True}, marks=distributed(world_size=2, backend="nccl", device="cuda"), id="nccl-2"),
    pytest.param({"foreach": True}, marks=distributed(world_size=2, backend="gloo", device="cuda"), id="gloo-2"),
]


@pytest.mark.parametrize("options", WAYS)
def test_training_and_saving_equal_the_unsharded_optimizers(options: dict[str, Any], ddp: DDPContext) -> None:
    def make() -> list[nn.Parameter]:
        return [nn.Parameter(p.detach().to(ddp.device)) for p in parameters()]

    beside = BesideUnsharded(AdamW, make=make, lr=0.02, **options)
    beside.train(range(3))
    saved = whole_state(beside.sharded)
    assert_states_equal(saved, to_cpu(beside.unsharded.state_dict()))
    beside.sharded = beside.new()
    beside.sharded.load_state_dict(saved)
    state = [value for each in beside.sharded.state.values() for value in each.values()]
    assert all(value.device.type == ddp.device.type for value in state if value.dim())
    beside.train([3])
    assert_same_on_all_ranks([parameter.cpu() for parameter in beside.mine] if ddp.backend == "gloo" else beside.mine)


def to_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_cpu(each) for key, each in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value
