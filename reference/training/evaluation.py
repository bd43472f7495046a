"""Accuracy over all ranks: correct answers and samples are summed, then divided.

A mean of the ranks' accuracies would be wrong wherever ranks have different numbers of samples, and a mean over batches
wherever the last batch is smaller. Counts add up whatever the shares: the ranks may have different numbers of batches,
or none, because nothing is exchanged between the first and the last of them.

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
    """The share of samples that the model classifies rightly, over all ranks. Call on every rank.

    All ranks evaluate one model: buffers become rank 0's first, as before each training forward. Those of batch norm
    have parted since the last one, and a checkpoint holds rank 0's.

    Args:
        model: gives scores of shape (batch, ..., classes); it runs in eval mode, without gradients, and gets its mode
            back whatever happens. One that communicates in forward, as FSDP does, needs as many batches on every rank.
        batches: this rank's inputs and labels of shape (batch, ...), any number of them; moved to the model's device.

    Returns:
        Between 0 and 1, the same on every rank; NaN if no rank had a sample.
    """
    bare = model.module if isinstance(model, DistributedDataParallel) else model  # torch's sends buffers in forward
    if dist.is_initialized():
        broadcast(bare.buffers(), source=0)
    device = next((t.device for t in [*bare.parameters(), *bare.buffers()]), torch.get_default_device())
    counts = torch.zeros(2, dtype=torch.float64, device=device)  # exact to 2**53 samples; int64 is not summed by all
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
    """Eval mode for every submodule, each of which gets its own mode back: some may have been frozen in eval mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
