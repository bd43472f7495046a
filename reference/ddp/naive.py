"""Data-parallel training, the plain way: one all-reduce per parameter, after backward.

Every rank holds the whole module and computes the gradient of the loss on its own part of the batch. The gradient of a
mean loss over the whole batch is the mean of the ranks' gradients. So the ranks average each gradient, and then their
optimizers make equal steps. Nothing overlaps with backward: a step takes the time of backward plus the time of all
collectives, one after the other.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2,
which starts from this solution.
"""

from reference.ddp.data_parallel import DataParallelModule
from reference.gradients import launch_flags, launch_mean, store_gradient


class NaiveDDP(DataParallelModule):
    """A module whose gradients are averaged over all ranks, parameter by parameter.

    A parameter that a rank did not use contributes zeros there; one that no rank used keeps its gradient unset.
    """

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        parameters = self._trainable()
        if not (parameters and self._synchronizes):
            return
        flags = launch_flags([p.grad is not None for p in parameters], parameters[0].device).wait()
        for parameter, used_by_any_rank in zip(parameters, flags, strict=True):
            [mean] = launch_mean([parameter]).wait()
            if used_by_any_rank:
                store_gradient(parameter, mean)
