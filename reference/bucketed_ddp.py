"""Data-parallel training with overlapped buckets: several gradients per all-reduce, started during backward.

One all-reduce per parameter pays the fixed cost of a collective for every small tensor; one for all gradients can only
start when backward is over. Buckets lie between: parameters in the reverse of their order in the module, roughly the
order in which backward reaches them, are grouped up to a given size. A hook on every parameter, called when its
gradient has been stored, counts its bucket down; a full bucket is flattened and its all-reduce started. Nobody waits
before `finish_gradient_synchronization`.

Collectives carry no names, so bucket k is started only after buckets 0 to k-1, on every rank; a bucket that never
fills, because a parameter was not used, is started in `finish_gradient_synchronization`. Every rank thus runs the same
sequence of collectives, whatever it used.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections
3.2.3 and 4.2; `torch.nn.parallel.DistributedDataParallel` (`bucket_cap_mb`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference.partition import fill_buckets
from reference.synchronize import PendingMean, agree, broadcast, launch_mean, store_gradient

BYTES_PER_MB = 1024 * 1024  # as in torch's bucket_cap_mb
NO_GRADIENT, HAS_GRADIENT, CHANGED_AFTER_LAUNCH = range(3)  # larger wins when ranks differ


class BucketedDDP(nn.Module):
    """A module whose gradients are averaged over all ranks in buckets, during backward.

    At construction every parameter and buffer becomes rank 0's; before each training forward the buffers do again.
    A parameter that some ranks did not use contributes zero there; one that no rank used keeps its gradient unset.
    Freezing and unfreezing parameters between steps is followed, provided that all ranks do the same.

    Args:
        module: the module to train; it is used, not copied.
        bucket_size_mb: most that a bucket holds, in units of 1024 * 1024 bytes, unless one parameter alone is larger;
            None for one bucket per dtype and device.
    """

    def __init__(self, module: nn.Module, bucket_size_mb: float | None) -> None:
        super().__init__()
        self.module = module
        self._capacity = None if bucket_size_mb is None else bucket_size_mb * BYTES_PER_MB
        self._backward: _Backward | None = None
        broadcast([*module.parameters(), *module.buffers()], source=0)
        for parameter in module.parameters():
            self._register_hook(parameter)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; when training, rank 0's buffers first, and no trace of an aborted backward."""
        if torch.is_grad_enabled():
            self._take_means()
            if self.training:
                broadcast(self.module.buffers(), source=0)
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""
        if self._backward is None:
            self._backward = _Backward(self._buckets())
        for parameter, mean in self._take_means():
            store_gradient(parameter, mean)

    def _register_hook(self, parameter: Tensor) -> None:
        if not (parameter.is_floating_point() or parameter.is_complex()):
            return  # can never have a gradient
        trainable = parameter.requires_grad
        # torch refuses the hook on a frozen parameter, which may be unfrozen later, but keeps one that is there.
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(self._gradient_ready)  # type: ignore[no-untyped-call]  # torch's
        parameter.requires_grad_(trainable)

    def _gradient_ready(self, parameter: Tensor) -> None:
        if self._backward is None:
            self._backward = _Backward(self._buckets())
        self._backward.gradient_ready(parameter)

    def _buckets(self) -> list[list[Tensor]]:
        parameters = [p for p in self.module.parameters() if p.requires_grad][::-1]
        sizes = [p.numel() * p.element_size() for p in parameters]
        kinds = [(p.dtype, p.device) for p in parameters]
        return [[parameters[i] for i in bucket] for bucket in fill_buckets(sizes, kinds, self._capacity)]

    def _take_means(self) -> list[tuple[Tensor, Tensor]]:
        """Complete the exchange that backward began, if any, and forget it.

        A backward that was aborted has left collectives under way on every rank; completing the canonical sequence is
        what keeps the ranks in step, and dropping its result is harmless because only copies travelled. Ranks that
        abort before their first gradient have begun nothing: either all do so or none, since telling them apart would
        cost an exchange in every forward.
        """
        backward, self._backward = self._backward, None
        return [] if backward is None else list(backward.means())


class _Backward:
    """The exchange of one backward pass: which gradients are missing, which buckets have been started."""

    def __init__(self, buckets: Sequence[list[Tensor]]) -> None:
        self.buckets = buckets
        self.bucket_of = {parameter: k for k, bucket in enumerate(buckets) for parameter in bucket}
        self.missing = [set(bucket) for bucket in buckets]
        self.changed: set[Tensor] = set()
        self.pending: list[PendingMean] = []

    def gradient_ready(self, parameter: Tensor) -> None:
        """Start every bucket that is full and whose turn has come.

        A parameter can be ready twice in one backward (reentrant checkpointing, a retained graph); what has already
        left is then out of date, and `means` sends its bucket once more.
        """
        if self.bucket_of[parameter] < len(self.pending):
            self.changed.add(parameter)
        self.missing[self.bucket_of[parameter]].discard(parameter)
        while len(self.pending) < len(self.buckets) and not self.missing[len(self.pending)]:
            self._launch_next()

    def means(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Start what is left, wait for everything; each parameter used on any rank, and its mean gradient."""
        while len(self.pending) < len(self.buckets):
            self._launch_next()
        flags = self._agreed_flags()
        for bucket, pending in zip(self.buckets, self.pending, strict=True):
            means = pending.wait()
            if any(flags[parameter] == CHANGED_AFTER_LAUNCH for parameter in bucket):
                means = launch_mean(bucket).wait()
            yield from ((p, mean) for p, mean in zip(bucket, means, strict=True) if flags[p] != NO_GRADIENT)

    def _launch_next(self) -> None:
        self.pending.append(launch_mean(self.buckets[len(self.pending)]))

    def _agreed_flags(self) -> dict[Tensor, int]:
        parameters = list(self.bucket_of)
        if not parameters:
            return {}
        flags = agree([self._flag(parameter) for parameter in parameters], parameters[0].device)
        return dict(zip(parameters, flags, strict=True))

    def _flag(self, parameter: Tensor) -> int:
        if parameter in self.changed:
            return CHANGED_AFTER_LAUNCH
        return NO_GRADIENT if parameter.grad is None else HAS_GRADIENT
