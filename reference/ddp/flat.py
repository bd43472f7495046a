"""Data-parallel training with one all-reduce: all gradients are sent in one flat tensor, after backward.

A collective takes a fixed time per call and a time per byte. For small tensors the fixed time is most of it, and a
module has many small parameters. So all gradients of one dtype and device are copied into one flat tensor, averaged
together and copied back. Nothing overlaps with backward, and every gradient exists twice while it is sent.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.2
(figure 2: communication time against tensor size).
"""

from reference.collectives import group_by_kind
from reference.ddp.data_parallel import DataParallelModule
from reference.gradients import average_gradients


class FlatDDP(DataParallelModule):
    """A module whose gradients are averaged over all ranks in one all-reduce per dtype and device.

    A parameter that a rank did not use contributes zeros there; one that no rank used keeps its gradient unset.
    """

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if self._synchronizes:
            for parameters in group_by_kind(self._trainable()):
                average_gradients(parameters)
