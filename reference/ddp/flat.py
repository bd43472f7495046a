"""Data-parallel training with one all-reduce: all gradients travel in one flat tensor, after backward.

A collective costs a fixed time per call besides the time per byte, and small tensors pay mostly the former. All
gradients of a dtype and device are therefore copied into one flat tensor, averaged together and copied back. Nothing
overlaps with backward, and the gradients exist twice while they travel.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.2
(figure 2: communication time against tensor size).
"""

from torch import Tensor

from reference.collectives import agree, group_by_kind, launch_mean, store_gradient
from reference.ddp.data_parallel import Replica


class FlatDDP(Replica):
    """A module whose gradients are averaged over all ranks in one all-reduce per dtype and device.

    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    """

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if self._synchronizes:
            for parameters in group_by_kind(p for p in self.module.parameters() if p.requires_grad):
                _average(parameters)


def _average(parameters: list[Tensor]) -> None:
    """Average the gradients of parameters of one dtype and device."""
    used = agree([p.grad is not None for p in parameters], parameters[0].device)
    means = launch_mean(parameters).wait()
    for parameter, mean, used_somewhere in zip(parameters, means, used, strict=True):
        if used_somewhere:
            store_gradient(parameter, mean)
