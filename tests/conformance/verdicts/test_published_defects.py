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
DDP = """
from torch.nn.parallel import DistributedDataParallel

def get_ddp(module):
    return DistributedDataParallel(module)
"""
STATIC_GRAPH = DDP.replace("Parallel(module)", "Parallel(module, static_graph=True)")
FULLY_SHARD = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

def get_fsdp(module, compute_dtype=None):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
    return fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=compute_dtype))

def fsdp_on_after_backward(fsdp_model, optimizer): pass

def fsdp_gather_full_params(fsdp_model):
    return {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in fsdp_model.named_parameters()}
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
        pytest.param(DDP, ("ddp", "trains[float64]"), "converted from float32", id="converted to float64"),
        pytest.param(
            DDP,
            ("ddp", "trains[parameters_of_any_shape]"),
            "converted to channels last",
            id="converted to channels last",
        ),
        pytest.param(DDP, ("ddp", "trains[through_module]"), "never synchronised", id="forward of .module"),
        pytest.param(DDP, ("ddp", "trains[recomputed_activations]"), "runs twice", id="reentrant checkpoint"),
        pytest.param(DDP, ("ddp", "trains[unfreezing_later]"), "never synchronised", id="unfrozen later"),
        pytest.param(
            STATIC_GRAPH, ("ddp", "trains[other_arguments]"), "never synchronised", id="static graph, dataclass"
        ),
        pytest.param(
            STATIC_GRAPH, ("ddp", "trains[gradient_penalty]"), "is not the average", id="static graph, penalty"
        ),
        pytest.param(
            FULLY_SHARD,
            ("fsdp", "trains[after_an_exception]"),
            "raised half way before",
            id="fully_shard after an exception",
            marks=pytest.mark.long,
        ),
        pytest.param(
            FULLY_SHARD,
            ("fsdp", "trains[other_arguments]"),
            "but an object that holds it",
            id="fully_shard, opaque output",
            marks=pytest.mark.long,
        ),
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
