"""torch's DistributedDataParallel with its options, as `conformance.verify` asks for wrappers."""

from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def plain(module: nn.Module) -> nn.Module:
    """Return the module as DDP wraps it without options."""
    return DistributedDataParallel(module)


def as_bucket_view(module: nn.Module) -> nn.Module:
    """Gradients are views of the buckets that are reduced."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def static_graph(module: nn.Module) -> nn.Module:
    """DDP takes the graph of the first step for that of all steps."""
    return DistributedDataParallel(module, static_graph=True)


def find_unused(module: nn.Module) -> nn.Module:
    """DDP looks in each forward for parameters that get no gradient."""
    return DistributedDataParallel(module, find_unused_parameters=True)


def with_bf16_hook(module: nn.Module) -> nn.Module:
    """Gradients are sent as bfloat16."""
    return _hooked(module, None, default_hooks.bf16_compress_hook)


def with_power_sgd(module: nn.Module) -> nn.Module:
    """Gradients of matrices are sent as products of matrices of rank 1, from the second step on."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return _hooked(module, state, powerSGD_hook.powerSGD_hook)


def _hooked(module: nn.Module, state: Any, hook: Any) -> nn.Module:
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(state, hook)
    return wrapped
