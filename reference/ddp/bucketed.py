"""Data-parallel training with overlapped buckets: several gradients per all-reduce, started during backward.

One all-reduce per parameter pays the fixed cost of a collective for every small tensor; one for all gradients can only
start when backward is over. Buckets lie between: parameters in the reverse of their order in the module, roughly the
order in which backward reaches them, are grouped up to a given size. A hook on every parameter, called when its
gradient has been stored, moves it into its bucket; a full bucket's all-reduce is started. Nobody waits before
`finish_gradient_synchronization`, after which gradients are views of their buckets.

Collectives carry no names, so bucket k is started only after buckets 0 to k-1, on every rank; a bucket that never
fills, because a parameter was not used, is started in `finish_gradient_synchronization`. Every rank thus runs the same
sequence of collectives, whatever it used, and one small last one that tells what it used. Only a rank that lacks a
gradient reads the answer, so there is no `find_unused_parameters`: on CUDA too, the host waits for nothing otherwise.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections
3.2.3 and 4.2; `torch.nn.parallel.DistributedDataParallel` (`bucket_cap_mb`).
"""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.collectives import broadcast
from reference.ddp.bucket import Bucket, make_buckets
from reference.ddp.data_parallel import Replica
from reference.ddp.exchange import Exchange
from reference.gradient_hooks import call_when_ready


class BucketedDDP(Replica):
    """A module whose gradients are averaged over all ranks in buckets, during backward.

    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    Between the moment when it is computed and the end of `finish_gradient_synchronization`, a gradient is None.
    Freezing and unfreezing parameters between steps is followed, provided that all ranks do the same.

    Args:
        module: the module to train; it is used, not copied.
        bucket_size_mb: most that a bucket holds, in units of 1024 * 1024 bytes, unless one parameter alone is larger;
            None for one bucket per dtype and device.
        first_bucket_size_mb: the same for the first bucket of each dtype and device: a small one leaves early.
        rebuild: order the parameters as they became ready in rank 0's first backward, from the second backward on.

    Raises:
        RuntimeError: in backward, if a parameter is given another gradient when its bucket has left.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_size_mb: float | None,
        *,
        first_bucket_size_mb: float | None = None,
        rebuild: bool = False,
    ) -> None:
        super().__init__(module)
        self._sizes_mb = (bucket_size_mb, first_bucket_size_mb)
        self._rebuild = rebuild
        self._position: dict[Tensor, int] = {}  # in rank 0's first backward, once known
        self._exchange: Exchange | None = None
        self._buckets: list[Bucket] = []
        self._layout: list[Any] = []
        self._register_hooks()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; when training, rank 0's buffers first, and no trace of an aborted backward."""
        if self._exchange is not None and self._synchronizes and torch.is_grad_enabled():
            self._settle(self._exchange)
        return super().forward(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if not self._synchronizes:
            return
        exchange, self._exchange = self._exchange or Exchange(self._current_buckets()), None
        exchange.complete()
        if self._rebuild:
            self._rebuild = False
            self._adopt_order(exchange)

    def _register_hooks(self) -> None:
        self._lock = threading.RLock()  # gradients of several devices become ready in several threads
        call_when_ready(self.module.parameters(), self._gradient_ready)

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not self._synchronizes:
            return
        with self._lock:
            if self._exchange is not None and self._exchange.backward_is_over:
                self.finish_gradient_synchronization()  # this gradient is another backward's, to be added to the means
            if self._exchange is None:
                self._exchange = Exchange(self._current_buckets())
            if self._exchange.has_left(parameter):
                raise RuntimeError(self._came_late(parameter))
            self._exchange.gradient_ready(parameter)

    def _settle(self, exchange: Exchange) -> None:
        """Before a forward: finish an exchange whose backward is over, abandon that of a backward that was aborted.

        Ranks that abort before their first gradient have begun nothing: that either all do so or none is not checked.
        """
        if exchange.backward_is_over or exchange.everything_has_left:
            self.finish_gradient_synchronization()
        else:
            self._exchange = None
            exchange.abandon()

    def _current_buckets(self) -> list[Bucket]:
        """The buckets, made anew when parameters have been frozen, unfrozen, converted or ordered."""
        last_first = [p for p in self.module.parameters() if p.requires_grad][::-1]
        parameters = sorted(last_first, key=lambda p: self._position.get(p, len(self._position)))
        layout = [(id(p), p.dtype, p.device, p.shape, p.stride()) for p in parameters]
        if layout != self._layout:
            self._layout, self._buckets = layout, []  # the old ones go before the new ones come
            self._buckets = make_buckets(parameters, *self._sizes_mb)
        return self._buckets

    def _adopt_order(self, exchange: Exchange) -> None:
        """Take over the order in which rank 0's parameters became ready; those that did not come last."""
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        if parameters:
            came = [exchange.came.get(p, len(exchange.came)) for p in parameters]
            positions = torch.tensor(came, device=parameters[0].device)
            broadcast([positions], source=0)
            self._position = dict(zip(parameters, positions.tolist(), strict=True))

    def _came_late(self, parameter: Tensor) -> str:
        [name] = [name for name, other in self.module.named_parameters() if other is parameter]
        return (
            f"Backward gave the parameter {name!r} on rank {dist.get_rank()} another gradient after its bucket had "
            "left for the other ranks, as reentrant checkpointing does with a layer that it runs twice. Pass "
            "use_reentrant=False to checkpoint, or use OverlappedDDP, which sends such a gradient again."
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_exchange": None, "_buckets": [], "_layout": [], "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._register_hooks()  # a copied parameter has none of its original's
