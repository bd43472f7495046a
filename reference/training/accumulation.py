"""Gradient accumulation: several small backwards, one exchange of gradients, one step.

Where a batch does not fit in memory, its parts are run one after the other and their gradients add up. Two things go
wrong easily. The loss of each part is a mean over the part, so the sum of k gradients is k times that of the whole
batch: each loss is divided by k. And only the last backward may communicate: averaging after every part would send k
times as much, and average again what is averaged already. `no_sync` keeps the others local.

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
    """One optimizer step on the mean of the microbatches' losses, averaged over all ranks. Call on every rank.

    Args:
        ddp_model: any data-parallel wrapper; what it has of `no_sync` and `finish_gradient_synchronization` is used.
        optimizer: its gradients are cleared first.
        microbatches: inputs and targets, as many on every rank. Each weighs the same: make them equally large, or the
            samples of a smaller one weigh more.
        loss_fn: from outputs and targets to their mean loss.
        scaler: scales the losses and takes the step, skipping it where gradients are not finite.

    Returns:
        The mean of this rank's losses, 0-dim, detached.

    Raises:
        ValueError: there are no microbatches.
    """
    if not microbatches:
        raise ValueError("accumulate_and_step got no microbatches: a step needs the gradients of at least one")
    optimizer.zero_grad()
    losses = []
    for index, (inputs, targets) in enumerate(microbatches):
        is_last = index == len(microbatches) - 1
        with nullcontext() if is_last else _without_synchronization(ddp_model):
            loss = loss_fn(ddp_model(inputs), targets) / len(microbatches)
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
    """The wrapper's `no_sync`; a model without it exchanges nothing by itself in backward."""
    no_sync: Callable[[], AbstractContextManager[None]] = getattr(model, "no_sync", nullcontext)
    return no_sync()


def _finish(model: nn.Module) -> None:
    """Let a wrapper that does not do so by itself wait for the averaged gradients."""
    finish = getattr(model, "finish_gradient_synchronization", None)
    if finish is not None:
        finish()
