"""Data-parallel training that communicates while backward computes: one asynchronous all-reduce per parameter.

Backward computes the gradients of the last layers first, so these can be sent while it computes the others. A hook on
every parameter is called when the parameter's gradient has been stored, and launches the all-reduce.
`finish_gradient_synchronization` waits for all of them.

All ranks must launch their all-reduces in one order (see `gradients`): here the reverse of the parameters' order in
the module, which is roughly the order in which backward reaches them. A gradient that is ready early waits until those
before it are launched. The all-reduces that backward did not launch, because this rank did not use their parameters,
are launched in `finish_gradient_synchronization`. So every rank launches the same sequence of collectives, whichever
parameters it uses.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections
3.2.3 and 4.2; `torch.Tensor.register_post_accumulate_grad_hook`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reference.ddp.data_parallel import DataParallelModule
from reference.gradients import (
    CHANGED_AFTER_LAUNCH,
    HAS_GRADIENT,
    NO_GRADIENT,
    OrderedLaunches,
    PendingMean,
    call_when_ready,
    launch_flags,
    launch_mean,
    store_gradient,
)


class OverlappedDDP(DataParallelModule):
    """A module whose gradients are averaged over all ranks one by one, during backward.

    A parameter that a rank did not use contributes zeros there; one that no rank used keeps its gradient unset.
    Parameters may be frozen and unfrozen between steps, if all ranks do the same.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._exchange: _Exchange | None = None  # of the backward that runs, or ran last
        call_when_ready(module.parameters(), self._gradient_ready)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if self._synchronizes:
            exchange, self._exchange = self._current_exchange(), None
            for parameter, mean in exchange.means():
                store_gradient(parameter, mean)

    def _gradient_ready(self, parameter: Tensor) -> None:
        if self._synchronizes:
            self._current_exchange().gradient_ready(parameter)

    def _current_exchange(self) -> "_Exchange":
        if self._exchange is None:
            self._exchange = _Exchange(self._trainable()[::-1])
        return self._exchange

    # Beyond a first reading: aborted backwards, and copies.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward. In training, it first ends an aborted backward and overwrites buffers by rank 0's.

        If backward was aborted by an exception, each rank has launched some collectives of the sequence. All ranks
        complete the sequence here, so that their next collectives match, and drop the means. No gradient was changed,
        because copies were sent. A rank that aborts before its first gradient has launched nothing: then all ranks must
        abort so early. This is not checked, because that would cost a collective in every forward.
        """
        if self._exchange is not None and self._synchronizes and torch.is_grad_enabled():
            exchange, self._exchange = self._exchange, None
            list(exchange.means())
        return super().forward(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_exchange": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        call_when_ready(self.module.parameters(), self._gradient_ready)  # a copied parameter has no hooks


class _Exchange:
    """The exchange of the gradients of one backward pass.

    Args:
        order: the parameters, in the order in which all ranks launch their all-reduces.
    """

    def __init__(self, order: list[Tensor]) -> None:
        self._launches: OrderedLaunches[Tensor, PendingMean] = OrderedLaunches(order, lambda p: launch_mean([p]))
        self._ready: set[Tensor] = set()
        self._changed: set[Tensor] = set()

    def gradient_ready(self, parameter: Tensor) -> None:
        """Launch every all-reduce that is next in the order and whose gradient is ready.

        A parameter can become ready twice in one backward (reentrant checkpointing, a retained graph). If its
        all-reduce was launched before the second time, `means` sends the gradient once more.
        """
        self._ready.add(parameter)
        if self._launches.was_launched(parameter):
            self._changed.add(parameter)
        while self._launches.next in self._ready:
            self._launches.launch_next()

    def means(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Launch the rest and wait for everything. Yields each parameter that any rank used, with its mean gradient."""
        self._launches.launch_rest()
        order = self._launches.order
        if not order:
            return
        flags = launch_flags([self._flag(p) for p in order], order[0].device, highest=CHANGED_AFTER_LAUNCH).wait()
        for parameter, pending, flag in zip(order, self._launches.pending, flags, strict=True):
            [mean] = pending.wait()
            if flag == CHANGED_AFTER_LAUNCH:
                [mean] = launch_mean([parameter]).wait()
            if flag != NO_GRADIENT:
                yield parameter, mean

    def _flag(self, parameter: Tensor) -> int:
        if parameter in self._changed:
            return CHANGED_AFTER_LAUNCH
        return NO_GRADIENT if parameter.grad is None else HAS_GRADIENT
