"""Data-parallel training with one all-reduce: all gradients travel in one flat tensor, after backward.

A collective costs a fixed time per call besides the time per byte, and small tensors pay mostly the former. All
gradients of a dtype and device are therefore copied into one flat tensor, averaged together and copied back. Nothing
overlaps with backward, and the gradients exist twice while they travel.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.2
(figure 2: communication time against tensor size).
"""

from typing import Any

import torch
from torch import Tensor, nn

from reference.synchronize import agree, broadcast, group_by_kind, launch_mean, store_gradient


class FlatDDP(nn.Module):
    """A module whose gradients are averaged over all ranks in one all-reduce per dtype and device.

    At construction every parameter and buffer becomes rank 0's; before each training forward the buffers do again.
    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast([*module.parameters(), *module.buffers()], source=0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; rank 0's buffers first when training."""
        if self.training and torch.is_grad_enabled():
            broadcast(self.module.buffers(), source=0)
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        for parameters in group_by_kind(p for p in self.module.parameters() if p.requires_grad):
            _average(parameters)


def _average(parameters: list[Tensor]) -> None:
    """Average the gradients of parameters of one dtype and device."""
    used = agree([p.grad is not None for p in parameters], parameters[0].device)
    means = launch_mean(parameters).wait()
    for parameter, mean, used_somewhere in zip(parameters, means, used, strict=True):
        if used_somewhere:
            store_gradient(parameter, mean)
