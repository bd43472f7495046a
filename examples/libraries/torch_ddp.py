"""torch's DistributedDataParallel with its options, as `conformance.verify` asks for wrappers."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def plain(module: nn.Module) -> nn.Module:
    """Return the module as DDP wraps it without options."""
    return DistributedDataParallel(module)


def static_graph(module: nn.Module) -> nn.Module:
    """DDP takes the graph of the first step for that of all steps."""
    return DistributedDataParallel(module, static_graph=True)


def as_bucket_view(module: nn.Module) -> nn.Module:
    """Gradients are views into DDP's buckets."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def finds_unused(module: nn.Module) -> nn.Module:
    """DDP looks for parameters that the outputs do not depend on."""
    return DistributedDataParallel(module, find_unused_parameters=True)
