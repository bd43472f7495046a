"""Data-parallel training that communicates while backward computes: one asynchronous all-reduce per parameter.

Backward reaches the last layers first, so their gradients can travel while the earlier layers' are still computed. A
hook on every parameter, called when its gradient has been stored, starts the all-reduce; nobody waits before
`finish_gradient_synchronization`.

Collectives carry no names: the first that one rank starts is matched with the first of every other. Ranks whose
graphs differ would mix parameters up, so all start them in one canonical order, the reverse of the parameters' order
in the module. A gradient that is ready early waits for those before it in this order, and whatever has not been
started by the end of backward is started in `finish_gradient_synchronization`. Every rank thus runs the same sequence
of collectives, whatever it used.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections
3.2.3 and 4.2; `torch.Tensor.register_post_accumulate_grad_hook`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference.collectives import PendingMean, agree, launch_mean, store_gradient
from reference.ddp.data_parallel import Replica
from reference.gradient_hooks import call_when_ready

NO_GRADIENT, HAS_GRADIENT, CHANGED_AFTER_LAUNCH = range(3)  # larger wins when ranks differ


class OverlappedDDP(Replica):
    """A module whose gradients are averaged over all ranks one by one, during backward.

    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    Freezing and unfreezing parameters between steps is followed, provided that all ranks do the same.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._backward: _Backward | None = None
        call_when_ready(module.parameters(), self._gradient_ready)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; when training, rank 0's buffers first, and no trace of an aborted backward."""
        if self._synchronizes and torch.is_grad_enabled():
            self._take_means()
        return super().forward(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if not self._synchronizes:
            return
        if self._backward is None:
            self._backward = _Backward(self._trainable())
        for parameter, mean in self._take_means():
            store_gradient(parameter, mean)

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not self._synchronizes:
            return
        if self._backward is None:
            self._backward = _Backward(self._trainable())
        self._backward.gradient_ready(parameter)

    def _trainable(self) -> list[Tensor]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _take_means(self) -> list[tuple[Tensor, Tensor]]:
        """Complete the exchange that backward began, if any, and forget it.

        A backward that was aborted has left collectives under way on every rank; completing the canonical sequence is
        what keeps the ranks in step, and dropping its result is harmless because only copies travelled. Ranks that
        abort before their first gradient have begun nothing: either all do so or none, since telling them apart would
        cost an exchange in every forward.
        """
        backward, self._backward = self._backward, None
        return [] if backward is None else list(backward.means())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_backward": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        call_when_ready(self.module.parameters(), self._gradient_ready)  # a copied parameter has none of its own


class _Backward:
    """The exchange of one backward pass: what is ready and what has been started, in the canonical order."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.order = list(reversed(parameters))
        self.position = {parameter: k for k, parameter in enumerate(self.order)}
        self.ready: set[Tensor] = set()
        self.changed: set[Tensor] = set()
        self.pending: list[PendingMean] = []

    def gradient_ready(self, parameter: Tensor) -> None:
        """Start every all-reduce whose turn has come.

        A parameter can be ready twice in one backward (reentrant checkpointing, a retained graph); what has already
        left is then out of date, and `means` sends it once more.
        """
        if self.position[parameter] < len(self.pending):
            self.changed.add(parameter)
        self.ready.add(parameter)
        while len(self.pending) < len(self.order) and self.order[len(self.pending)] in self.ready:
            self._launch_next()

    def means(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Start what is left, wait for everything; each parameter used on any rank, and its mean gradient."""
        while len(self.pending) < len(self.order):
            self._launch_next()
        for pending, flag in zip(self.pending, self._agreed_flags(), strict=True):
            [parameter], [mean] = pending.parameters, pending.wait()
            if flag == CHANGED_AFTER_LAUNCH:
                [mean] = launch_mean([parameter]).wait()
            if flag != NO_GRADIENT:
                yield parameter, mean

    def _launch_next(self) -> None:
        self.pending.append(launch_mean([self.order[len(self.pending)]]))

    def _agreed_flags(self) -> list[int]:
        if not self.order:
            return []
        return agree([self._flag(parameter) for parameter in self.order], self.order[0].device)

    def _flag(self, parameter: Tensor) -> int:
        if parameter in self.changed:
            return CHANGED_AFTER_LAUNCH
        return NO_GRADIENT if parameter.grad is None else HAS_GRADIENT
