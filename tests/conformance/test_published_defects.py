"""Published implementations that are wrong, or inexact, are told so: what is accepted is not accepted for its name."""

import pytest

REPLICATE = """
from torch.distributed._composable.replicate import replicate

def get_ddp(module):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
    return replicate(module)
"""
COMPRESSED = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

def get_ddp(module):
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped
"""
SHARDED_DDP = """
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS

def get_ddp(module):
    return ShardedDataParallel(module, OSS(module.parameters(), torch.optim.SGD, lr=0.1))
"""
WRITES_INTO_THE_STATE = """
from torch.distributed.optim import ZeroRedundancyOptimizer

def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    return ZeroRedundancyOptimizer(params, optimizer_cls, **kwargs)
"""
HEAD = """
import torch
import torch.distributed as dist

def ddp_on_after_backward(ddp_model, optimizer): pass
"""


@pytest.mark.parametrize(
    ("adapters", "breaks", "words"),
    [
        pytest.param(REPLICATE, ("ddp", "trains[buffers]"), "is not rank 0's", id="replicate", marks=pytest.mark.long),
        pytest.param(COMPRESSED, ("ddp", "gradients_averaged"), "float16", id="fp16_compress_hook"),
        pytest.param(SHARDED_DDP, ("ddp", "gradients_averaged"), "it is missing", id="fairscale's ShardedDDP"),
        pytest.param(
            WRITES_INTO_THE_STATE,
            ("sharded_optimizer", "arguments_stay"),
            "has changed what it was given, at `['state']",
            id="ZeroRedundancyOptimizer",
        ),
    ],
)
def test_it_fails_the_check_that_it_breaks(held_to, submit, adapters, breaks, words):
    found = held_to(submit(HEAD + adapters), *breaks)
    assert found.status == "failed", found
    assert words in f"{found.message} {found.diagnosis}"
