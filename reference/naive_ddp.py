"""Data-parallel training, the plain way: one all-reduce per parameter, after backward.

Every rank holds the whole module and computes the gradient of its own share of the batch. The gradient of a mean loss
over the whole batch is the mean of the ranks' gradients, so once these are averaged, equal parameters and equal
optimizers stay equal. Nothing overlaps with backward: the cost is the time of all collectives, one after the other.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2,
where this is the solution that the paper starts from.
"""

from typing import Any

import torch
from torch import nn

from reference.synchronize import agree, broadcast, launch_mean, store_gradient


class NaiveDDP(nn.Module):
    """A module whose gradients are averaged over all ranks, parameter by parameter.

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
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not parameters:
            return
        used = agree([p.grad is not None for p in parameters], parameters[0].device)
        for parameter, used_somewhere in zip(parameters, used, strict=True):
            [mean] = launch_mean([parameter]).wait()
            if used_somewhere:
                store_gradient(parameter, mean)
