"""Gradient accumulation: several small backwards, one exchange of gradients, one step.

If a batch does not fit in memory, split it into microbatches: run forward and backward on each, and let their
gradients add up. Two mistakes are common. First, the loss of a microbatch is a mean over the microbatch, so the sum of
k gradients is k times too large: weight each loss by the microbatch's share of the samples, which is 1/k if all are
equally large. Second, only the last backward may communicate. To average after every microbatch would send k times as
much, and average gradients that are averaged already. `no_sync` keeps the other backwards local.

Source: `torch.nn.parallel.DistributedDataParallel.no_sync`; Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training" (VLDB 2020), section 3.2.4.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer


def accumulate_and_step(
    ddp_model: nn.Module,
    optimizer: Optimizer,
    microbatches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    scaler: GradScaler | None = None,
) -> Tensor:
    """One optimizer step on the mean loss of all samples, averaged over all ranks. Call on every rank.

    Args:
        ddp_model: any data-parallel wrapper. Its `no_sync` and `finish_gradient_synchronization` are used if it has
            them.
        optimizer: its gradients are cleared first.
        microbatches: inputs and targets, as many on every rank. Each counts by its number of samples.
        loss_fn: from outputs and targets to their mean loss.
        scaler: scales the losses and takes the step, or skips it if gradients are not finite.

    Returns:
        The mean loss of this rank's samples, 0-dim, detached.

    Raises:
        ValueError: there are no microbatches.
    """
    if not microbatches:
        raise ValueError("accumulate_and_step got no microbatches: a step needs at least one")
    optimizer.zero_grad()
    losses, samples = [], sum(len(inputs) for inputs, _ in microbatches)
    for index, (inputs, targets) in enumerate(microbatches):
        is_last = index == len(microbatches) - 1
        with nullcontext() if is_last else _without_synchronization(ddp_model):
            loss = loss_fn(ddp_model(inputs), targets) * (len(inputs) / samples)
            torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
        losses.append(loss.detach())
    _finish(ddp_model)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return torch.stack(losses).sum()


def _without_synchronization(model: nn.Module) -> AbstractContextManager[None]:
    """The wrapper's `no_sync`; a model without `no_sync` does not communicate in backward."""
    no_sync: Callable[[], AbstractContextManager[None]] = getattr(model, "no_sync", nullcontext)
    return no_sync()


def _finish(model: nn.Module) -> None:
    """Wait for the averaged gradients, unless the wrapper has done so at the end of backward."""
    finish = getattr(model, "finish_gradient_synchronization", None)
    if finish is not None:
        finish()
