"""torch's own DDP with its options, on a model of a megabyte and a half."""

import pickle
import warnings
from contextlib import nullcontext

import gated
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import observed
from pytest_ddp.observed.recording import current

STEPS = 4  # buckets are made anew after the first, with static_graph after the second
WIDTH = 256
DEFAULT = None
OPTIONS = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "all": {"gradient_as_bucket_view": True, "static_graph": True, "find_unused_parameters": True},
    "fp16_hook": {},
    "own_hook": {},
    "own_hook_and_static_graph": {"static_graph": True},
    "builtin_fp16_hook": {},
}


def own_hook(group, bucket):
    """Divide, reduce, and unpack, as in a communication hook of a user."""
    work = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Model(nn.Module):
    def __init__(self, *, unused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.spare = nn.Linear(WIDTH, WIDTH) if unused else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs).relu()
        return inputs


def wrapped(option: str, bucket_mb: float | None) -> DistributedDataParallel:
    size = {} if bucket_mb is DEFAULT else {"bucket_cap_mb": bucket_mb}
    module = DistributedDataParallel(Model(unused=option == "find_unused_parameters"), **size, **OPTIONS[option])
    if option == "fp16_hook":
        module.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    if option.startswith("own_hook"):
        module.register_comm_hook(dist.group.WORLD, own_hook)
    if option == "builtin_fp16_hook":
        module._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return module


def train(body: bytes) -> bytes:
    """Return all gradients and parameters after the last step, the verdicts, and the operations never waited for."""
    option, bucket_mb, text = pickle.loads(body)  # noqa: S301  from our own test
    numbers = torch.Generator().manual_seed(dist.get_rank())
    collectives = observed.collectives() if current.is_observed() else None
    with warnings.catch_warnings(), collectives.gate(gated.schedule(text)) if collectives else nullcontext():
        warnings.simplefilter("ignore")  # torch's own deprecations
        module = wrapped(option, bucket_mb)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(torch.randn(4, WIDTH, generator=numbers)).pow(2).mean().backward()
            optimizer.step()
    parameters = list(module.parameters())
    found = [tensor.detach().numpy().tobytes() for p in parameters for tensor in (p, p.grad) if tensor is not None]
    told = (collectives.overlap, collectives.unawaited) if collectives else ([], [])
    return pickle.dumps((found, *told))
