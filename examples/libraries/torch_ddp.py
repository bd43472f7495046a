"""torch's DistributedDataParallel with its options, as `conformance.verify` asks for wrappers."""

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
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


def with_bf16_hook(module: nn.Module) -> nn.Module:
    """Gradients are sent as bfloat16."""
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped
