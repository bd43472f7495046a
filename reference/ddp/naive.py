"""Data-parallel training, the plain way: one all-reduce per parameter, after backward.

Every rank holds the whole module and computes the gradient of its own share of the batch. The gradient of a mean loss
over the whole batch is the mean of the ranks' gradients, so once these are averaged, equal parameters and equal
optimizers stay equal. Nothing overlaps with backward: the cost is the time of all collectives, one after the other.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2,
where this is the solution that the paper starts from.
"""

from reference.collectives import agree, launch_mean, store_gradient
from reference.ddp.data_parallel import Replica


class NaiveDDP(Replica):
    """A module whose gradients are averaged over all ranks, parameter by parameter.

    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    """

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not (parameters and self._synchronizes):
            return
        used = agree([p.grad is not None for p in parameters], parameters[0].device)
        for parameter, used_somewhere in zip(parameters, used, strict=True):
            [mean] = launch_mean([parameter]).wait()
            if used_somewhere:
                store_gradient(parameter, mean)
