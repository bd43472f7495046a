"""Accuracy over all ranks: correct answers and samples are summed, then divided.

A mean of the ranks' accuracies would be wrong if ranks have different numbers of samples, and a mean over batches would
be wrong if the last batch is smaller. The counts can be added up in any case. Ranks may have different numbers of
batches, or none, because they do not communicate between the first batch and the last.

Use it with a sampler that gives every sample to exactly one rank (see `samplers.EvaluationSampler`).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference.collectives import broadcast


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The fraction of samples that the model classifies correctly, over all ranks. Call on every rank.

    All ranks evaluate the same model: their buffers are first overwritten by rank 0's. Those of batch norm differ since
    the last training forward, and a checkpoint holds rank 0's.

    Args:
        model: returns scores of shape (batch, ..., classes). It runs in eval mode, without gradients, and its mode is
            restored even if it raises. A model that communicates in forward, as FSDP does, needs the same number of
            batches on every rank.
        batches: this rank's inputs and labels of shape (batch, ...), any number of them. They are moved to the model's
            device.

    Returns:
        Between 0 and 1, the same on every rank; NaN if no rank had a sample.
    """
    bare = model.module if isinstance(model, DistributedDataParallel) else model  # its forward would send buffers
    if dist.is_initialized():
        broadcast(bare.buffers(), source=0)
    device = next((t.device for t in [*bare.parameters(), *bare.buffers()]), torch.get_default_device())
    counts = torch.zeros(2, dtype=torch.float64, device=device)  # exact up to 2**53; not every backend sums int64
    with _evaluating(bare), torch.no_grad():
        for inputs, labels in batches:
            answers = bare(inputs.to(device)).argmax(dim=-1)
            counts[0] += (answers == labels.to(device)).sum()
            counts[1] += labels.numel()
    if dist.is_initialized():
        dist.all_reduce(counts)
    correct, total = counts.tolist()
    return correct / total if total else float("nan")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for every submodule. Each gets its own mode back, because some may have been in eval mode before."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
