"""Data-parallel training with buckets: several gradients per all-reduce, launched while backward computes.

**Idea.** One all-reduce per parameter pays the fixed cost of a collective for every small tensor. One all-reduce for
all gradients can start only when backward is over. Buckets are in between: consecutive parameters are put into buckets
of a given size, the last parameters of the module first, because backward reaches those first. A hook on every
parameter moves its gradient into its bucket. When a bucket is full, its all-reduce is launched, and backward goes on.
`finish_gradient_synchronization` waits for all of them.

**One order.** All ranks must launch their all-reduces in one order (see `gradients`): bucket k after buckets 0 to k-1.
A bucket that does not become full, because this rank did not use one of its parameters, is launched after backward. A
last small all-reduce tells which parameters any rank used. So every rank launches the same sequence of collectives,
whichever parameters it uses. Only a rank that lacks a gradient reads the flags, so nothing else makes the host wait for
a GPU, and no option like torch's `find_unused_parameters` is needed.

**Memory.** Copying gradients into a bucket and back would hold every gradient twice. Here a gradient is moved into its
bucket once, divided by the world size on the way, and after the all-reduce `parameter.grad` is a view of the bucket. In
between, `parameter.grad` is None. So autograd cannot write into memory that is being sent, and no code can read a
gradient that is not averaged yet.

Read `BucketedDDP`, `_Exchange` and `_Bucket` first. What is beyond a first reading is at the end of a class or of the
file, under a comment: aborted backwards, copies, and new buckets in the order in which gradients became ready.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections
3.2.3 and 4.2; `torch.nn.parallel.DistributedDataParallel` (`bucket_cap_mb`, `gradient_as_bucket_view`).
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.collectives import broadcast
from reference.ddp.data_parallel import DataParallelModule
from reference.gradients import OrderedLaunches, call_when_ready, launch_flags
from reference.partition import fill_buckets

BYTES_PER_MB = 1024 * 1024  # as in torch's bucket_cap_mb


class BucketedDDP(DataParallelModule):
    """A module whose gradients are averaged over all ranks in buckets, during backward.

    A parameter that a rank did not use contributes zeros there; one that no rank used keeps its gradient unset.
    From the moment backward has computed a gradient until `finish_gradient_synchronization` returns, it is None.
    Parameters may be frozen and unfrozen between steps, if all ranks do the same.

    Args:
        module: the module to train; it is used, not copied.
        bucket_size_mb: the largest size of a bucket, in units of 1024 * 1024 bytes; a larger parameter gets a bucket of
            its own. None: one bucket per dtype and device.
        first_bucket_size_mb: the largest size of the first bucket of each dtype and device: a small one is launched
            early. None: `bucket_size_mb`.
        rebuild: after the first backward, order the parameters as they became ready on rank 0 in it.

    Raises:
        RuntimeError: in backward, if a parameter gets another gradient after its bucket was launched.
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
        self._order = _ReadyOrder(rebuild=rebuild)
        self._buckets: list[_Bucket] = []
        self._layout: list[Any] = []  # of the parameters for which the buckets were made
        self._exchange: _Exchange | None = None  # of the backward that runs, or ran last
        self._register_hooks()

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if self._synchronizes:
            exchange, self._exchange = self._exchange or _Exchange(self._current_buckets()), None
            exchange.complete()
            self._order.learn(exchange)

    def _register_hooks(self) -> None:
        self._lock = threading.RLock()  # autograd runs the hooks of each device's parameters in a thread of its own
        call_when_ready(self.module.parameters(), self._gradient_ready)

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not self._synchronizes:
            return
        with self._lock:
            if self._exchange is not None and self._exchange.backward.is_over:
                self.finish_gradient_synchronization()  # this gradient is another backward's; it is added to the means
            if self._exchange is None:
                self._exchange = _Exchange(self._current_buckets())
            if self._exchange.was_launched(parameter):
                raise RuntimeError(self._changed_after_launch(parameter))
            self._exchange.gradient_ready(parameter)

    def _current_buckets(self) -> list["_Bucket"]:
        """The buckets; new ones if parameters were frozen, unfrozen or converted, or their order changed."""
        parameters = self._order.sort(self._trainable()[::-1])
        layout = [(id(p), p.dtype, p.device, p.shape, p.stride()) for p in parameters]
        if layout != self._layout:
            self._layout, self._buckets = layout, []  # frees the old buckets before the new ones are allocated
            self._buckets = _make_buckets(parameters, *self._sizes_mb)
        return self._buckets

    def _changed_after_launch(self, parameter: Tensor) -> str:
        [name] = [name for name, other in self.module.named_parameters() if other is parameter]
        return (
            f"Backward computed another gradient of the parameter {name!r} on rank {dist.get_rank()} after the "
            "parameter's bucket was sent. Reentrant checkpointing does this with a layer that it runs twice. Pass "
            "use_reentrant=False to checkpoint, or use OverlappedDDP, which sends such a gradient again."
        )

    # Beyond a first reading: aborted backwards, and copies.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward. In training, it first ends an aborted backward and overwrites buffers by rank 0's.

        A rank that aborts before its first gradient has launched nothing: then all ranks must abort so early. This is
        not checked.
        """
        if self._exchange is not None and self._synchronizes and torch.is_grad_enabled():
            if self._exchange.backward.is_over or self._exchange.is_launched:
                self.finish_gradient_synchronization()
            else:
                exchange, self._exchange = self._exchange, None
                exchange.abandon()
        return super().forward(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_exchange": None, "_buckets": [], "_layout": [], "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._register_hooks()  # a copied parameter has no hooks


class _Exchange:
    """The exchange of the gradients of one backward pass.

    It ends in one of two ways, `complete` or `abandon`, with the same sequence of collectives: every bucket in turn,
    then the flags. So the next collectives of all ranks match, even if backward was aborted on one of them.

    Args:
        buckets: in the order in which all ranks launch them.

    Attributes:
        ready: the parameters whose gradients are ready, in the order in which they became so.
        backward: whether the backward pass is over.
    """

    def __init__(self, buckets: Sequence["_Bucket"]) -> None:
        self._launches: OrderedLaunches[_Bucket, dist.Work] = OrderedLaunches(buckets, _Bucket.launch)
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self.ready: dict[Tensor, None] = {}
        self.backward = _BackwardWatch()
        for bucket in buckets:
            bucket.filled.clear()

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, in the order of their buckets."""
        return list(self._bucket_of)

    @property
    def is_launched(self) -> bool:
        """Whether all buckets have been launched."""
        return self._launches.next is None

    def was_launched(self, parameter: Tensor) -> bool:
        """Whether the parameter's bucket has been launched."""
        return self._launches.was_launched(self._bucket_of[parameter])

    def gradient_ready(self, parameter: Tensor) -> None:
        """Move the parameter's gradient into its bucket, and launch every bucket that is next in order and full."""
        self.backward.gradient_ready()
        self.ready[parameter] = None
        self._bucket_of[parameter].move_in(parameter)
        while (bucket := self._launches.next) is not None and bucket.is_full:
            self._launches.launch_next()

    def complete(self) -> None:
        """Launch the rest, wait for everything, and give each parameter that any rank used its mean gradient."""
        if not self._bucket_of:
            return
        self._launches.launch_rest()
        used = [parameter in bucket.filled for parameter, bucket in self._bucket_of.items()]
        used_by_any_rank = self._wait(used)
        for (parameter, bucket), flag in zip(self._bucket_of.items(), used_by_any_rank, strict=True):
            if flag:
                bucket.hand_back(parameter)

    def _wait(self, used: Sequence[bool]) -> list[int]:
        """Exchange the flags and wait for all collectives. Returns for each parameter whether any rank used it."""
        flags = launch_flags(used, self._launches.order[0].flat.device)
        for work in self._launches.pending:
            work.wait()
        return flags.wait()

    # Beyond a first reading: aborted backwards.

    def abandon(self) -> None:
        """Complete the sequence with zeros, because other ranks may be waiting, and drop the result.

        Gradients that were moved into buckets are lost; the others stay as they are.
        """
        zeros = [torch.zeros_like(b.flat) for b in self._launches.order if not self._launches.was_launched(b)]
        self._launches.pending.extend(dist.all_reduce(flat, async_op=True) for flat in zeros)
        self._wait([False] * len(self._bucket_of))


class _Bucket:
    """The gradients of parameters of one dtype and device, in one flat tensor, which is sent as it is.

    Args:
        parameters: the parameters whose gradients it holds.

    Attributes:
        flat: 1-d, as many elements as the parameters have together.
        filled: the parameters whose gradients are in it.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        first, sizes = parameters[0], [p.numel() for p in parameters]
        self.parameters = parameters
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = zip(parameters, torch.split(self.flat, sizes), strict=True)
        self._views = {p: piece.as_strided(p.shape, _strides_of_gradient(p)) for p, piece in pieces}
        self._share = 1 / dist.get_world_size()
        self.filled: set[Tensor] = set()

    @property
    def is_full(self) -> bool:
        """Whether the gradients of all parameters are in it."""
        return len(self.filled) == len(self.parameters)

    def move_in(self, parameter: Tensor) -> None:
        """Take the parameter's gradient, divided by the world size; add it if the bucket holds one already.

        Dividing before the sum keeps float16 in range: the sum of many gradients can overflow, their mean cannot. A
        sparse gradient becomes dense, because ranks may have different rows.
        """
        gradient, parameter.grad = parameter.grad, None
        view = self._views[parameter]
        if gradient is None:
            view.zero_()
            return
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if parameter in self.filled:
            view.add_(gradient.detach(), alpha=self._share)
        elif gradient is view:  # earlier backwards have added up their gradients here
            view.mul_(self._share)
        else:
            torch.mul(gradient.detach(), self._share, out=view)
        self.filled.add(parameter)

    def launch(self) -> dist.Work:
        """Start the all-reduce, without waiting.

        A parameter that backward did not reach contributes the gradient that it has from a `no_sync`, or zeros.
        """
        for parameter in self.parameters:
            if parameter not in self.filled:
                self.move_in(parameter)
        work: dist.Work = dist.all_reduce(self.flat, async_op=True)
        return work

    def hand_back(self, parameter: Tensor) -> None:
        """Give the parameter its mean gradient, a view of `flat`."""
        later, parameter.grad = parameter.grad, self._views[parameter]
        if later is not None:  # from a backward that has begun after this one
            parameter.grad.add_(later.detach())


def _make_buckets(parameters: Sequence[Tensor], size_mb: float | None, first_size_mb: float | None) -> list[_Bucket]:
    """Put parameters into buckets, in order, those of each dtype and device into buckets of their own.

    Args:
        parameters: in the order in which their gradients are expected.
        size_mb: the largest size of a bucket, in units of `BYTES_PER_MB`; None for no limit.
        first_size_mb: the same for the first bucket of each dtype and device; None for `size_mb`.

    Returns:
        The buckets in the order in which they are expected to become full.
    """
    sizes = [p.numel() * p.element_size() for p in parameters]
    kinds = [(p.dtype, p.device) for p in parameters]
    capacities = [None if mb is None else mb * BYTES_PER_MB for mb in (size_mb, first_size_mb)]
    return [_Bucket([parameters[i] for i in bucket]) for bucket in fill_buckets(sizes, kinds, *capacities)]


def _strides_of_gradient(parameter: Tensor) -> tuple[int, ...]:
    """The strides that autograd gives the gradient: the parameter's own if it is dense, else similar dense ones."""
    return torch.empty_like(parameter, device="meta").stride()


# Beyond a first reading: new buckets in the order in which gradients became ready, and aborted backwards


class _ReadyOrder:
    """The order in which gradients are expected: at first, the reverse of the parameters' order in the module.

    A module that uses its layers in another order than it registers them would fill all buckets late. With `rebuild`,
    the order changes after the first backward to the one in which the gradients became ready on rank 0.
    """

    def __init__(self, *, rebuild: bool) -> None:
        self._learns = rebuild
        self._position: Mapping[Tensor, int] = {}

    def sort(self, last_first: Sequence[Tensor]) -> list[Tensor]:
        """The parameters in the order in which their gradients are expected; at first, the order that is given."""
        return sorted(last_first, key=lambda p: self._position.get(p, len(self._position)))

    def learn(self, exchange: _Exchange) -> None:
        """Take over rank 0's order, after the first backward. Parameters without a gradient come last."""
        parameters = exchange.parameters
        if self._learns and parameters:
            position = {parameter: k for k, parameter in enumerate(exchange.ready)}
            on_rank_0 = [position.get(p, len(position)) for p in parameters]
            positions = torch.tensor(on_rank_0, device=parameters[0].device)
            broadcast([positions], source=0)
            self._position = dict(zip(parameters, positions.tolist(), strict=True))
        self._learns = False


class _BackwardWatch:
    """Whether a backward pass is over; an aborted one never is.

    Autograd calls a queued callback at the end of the backward in which it was queued. Reentrant checkpointing runs
    backwards inside a backward. When an inner one ends, autograd is still at a node of the outer one, and the next
    gradient queues the callback again.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._is_queued = False

    def gradient_ready(self) -> None:
        """A gradient is ready: ask autograd for a call at the end of this backward, unless that has been done."""
        if not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # noqa: SLF001  # as FSDP does

    def _backward_ends(self) -> None:
        self._is_queued = False
        self.is_over = torch._C._current_autograd_node() is None  # noqa: SLF001  # there is no public way to ask
