"""The exchange of one backward pass: which gradients have come, which buckets have left, and how it ends.

It ends in one of two ways, and runs the same sequence of collectives in both: every bucket in its turn, then what each
rank used. Ranks thus stay in step even if backward was aborted on some of them.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.ddp.bucket import Bucket


class Exchange:
    """The exchange of the gradients of one backward pass.

    Args:
        buckets: in the order in which they leave, the same on every rank.

    Attributes:
        came: how many others came before each parameter whose gradient has come.
        backward_is_over: whether the backward pass has ended, as far as known; never true of an aborted one.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._turn = {parameter: k for k, bucket in enumerate(buckets) for parameter in bucket.parameters}
        self._under_way: list[dist.Work] = []
        self._end_is_watched = False
        self.came: dict[Tensor, int] = {}
        self.backward_is_over = False
        for bucket in buckets:
            bucket.moved.clear()

    @property
    def everything_has_left(self) -> bool:
        """Whether all buckets are on their way."""
        return len(self._under_way) == len(self._buckets)

    def has_left(self, parameter: Tensor) -> bool:
        """Whether the parameter's bucket is on its way."""
        return self._turn[parameter] < len(self._under_way)

    def gradient_ready(self, parameter: Tensor) -> None:
        """Move the parameter's gradient into its bucket; start every bucket that is full and whose turn has come."""
        self._watch_for_the_end()
        self.came.setdefault(parameter, len(self.came))
        self._buckets[self._turn[parameter]].move_in(parameter)
        while not self.everything_has_left and self._buckets[len(self._under_way)].full:
            self._launch_next()

    def complete(self) -> None:
        """Start what is left, wait for everything, and give each parameter used on any rank its mean gradient."""
        if not self._buckets:
            return
        while not self.everything_has_left:
            self._launch_next()
        used = {parameter: parameter in bucket.moved for bucket in self._buckets for parameter in bucket.parameters}
        told = self._tell(used)
        self._wait()
        if not all(used.values()):  # else the answer is known, and reading it would have the host wait for a GPU
            used = dict(zip(used, map(bool, told.tolist()), strict=True))
        for bucket in self._buckets:
            bucket.hand_back(used)

    def abandon(self) -> None:
        """Complete the sequence with zeros, for ranks that may be waiting, and drop the result.

        Gradients that had come are dropped too; those of parameters whose turn had not come are left as they are.
        """
        for bucket in self._buckets[len(self._under_way) :]:
            self._under_way.append(dist.all_reduce(torch.zeros_like(bucket.flat), async_op=True))
        self._tell(dict.fromkeys(self._turn, False))
        self._wait()

    def _launch_next(self) -> None:
        self._under_way.append(self._buckets[len(self._under_way)].launch())

    def _wait(self) -> None:
        for work in self._under_way:
            work.wait()

    def _tell(self, used: dict[Tensor, bool]) -> Tensor:
        """Start telling which parameters any rank used: 1 or 0 for each, uint8, on the device of the first."""
        told = torch.ones(len(used), dtype=torch.uint8, device=self._buckets[0].flat.device)
        for k, parameter in enumerate(used):
            if not used[parameter]:
                told[k] = 0  # one by one: a copy of a list to a GPU would wait for all that the GPU has to do
        self._under_way.append(dist.all_reduce(told, op=dist.ReduceOp.MAX, async_op=True))
        return told

    def _watch_for_the_end(self) -> None:
        """Have autograd tell when this backward is over.

        Reentrant checkpointing runs backwards inside this one: a callback belongs to the innermost, which has a node
        around it, so the next gradient asks again.
        """
        if not self._end_is_watched:
            self._end_is_watched = True
            torch.autograd.Variable._execution_engine.queue_callback(self._a_backward_is_over)  # noqa: SLF001  # as FSDP does

    def _a_backward_is_over(self) -> None:
        self._end_is_watched = False
        self.backward_is_over = torch._C._current_autograd_node() is None  # noqa: SLF001  # there is no other way to ask
