"""Four ways to average gradients over ranks. All of them work on buckets of parameters; they differ in what a bucket
holds and in when it is sent."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def copy_from_rank0(tensors):
    for tensor in tensors:
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)  # bytes: gloo does not know every dtype
        tensor.data.copy_(value)


def used_anywhere(params):
    """The parameters that have a gradient on at least one rank."""
    if not params:
        return set()
    flags = torch.tensor([p.grad is not None for p in params], dtype=torch.int32, device=params[0].device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return {p for p, flag in zip(params, flags.tolist(), strict=True) if flag}


class Bucket:
    def __init__(self):
        self.params = []
        self.waiting_for = set()
        self.nbytes = 0
        self.handle = None

    def add(self, param):
        self.params.append(param)
        self.waiting_for.add(param)
        self.nbytes += param.numel() * param.element_size()

    def launch(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.params]
        self.flat = torch.cat([grad.detach().reshape(-1) for grad in grads]) / dist.get_world_size()
        self.handle = dist.all_reduce(self.flat, async_op=True)

    def collect(self, used):
        self.handle.wait()
        pieces = self.flat.split([p.numel() for p in self.params])
        for param, piece in zip(self.params, pieces, strict=True):
            if param not in used:
                continue
            if param.grad is None or param.grad.is_sparse:
                param.grad = torch.zeros_like(param)
            param.grad.detach().copy_(piece.view_as(param))


class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.synchronises = True
        copy_from_rank0([*module.parameters(), *module.buffers()])

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            copy_from_rank0(self.module.buffers())
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        """Gradients only add up in here; the next backward outside averages the sum."""
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    def trainable(self):
        return [p for p in self.module.parameters() if p.requires_grad]

    def make_buckets(self, params, max_bytes):
        """Fill buckets in the given order: one dtype each, and at most max_bytes unless one param alone is larger."""
        buckets, current = [], {}
        for param in params:
            kind = (param.dtype, param.device)
            nbytes = param.numel() * param.element_size()
            if kind not in current or current[kind].nbytes + nbytes > max_bytes:
                current[kind] = Bucket()
                buckets.append(current[kind])
            current[kind].add(param)
        return buckets


class NaiveDDP(DDP):
    """One all-reduce per parameter, after backward."""

    max_bytes = 0

    def finish_gradient_synchronization(self):
        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)


class FlatDDP(NaiveDDP):
    """One all-reduce for everything (of one dtype), after backward."""

    max_bytes = float("inf")


class BucketedDDP(DDP):
    """Buckets, each sent during backward as soon as it is full and all buckets before it are sent."""

    def __init__(self, module, bucket_size_mb):
        super().__init__(module)
        self.max_bytes = float("inf") if bucket_size_mb is None else bucket_size_mb * 1024 * 1024
        self.hooked = set()
        self.buckets, self.sent = [], 0

    def forward(self, *args, **kwargs):
        if self.synchronises and torch.is_grad_enabled():
            self.start()
        return super().forward(*args, **kwargs)

    def start(self):
        """A new backward: everything is waited for, also what was frozen until now."""
        for bucket in self.buckets[: self.sent]:  # left over if the last backward raised
            bucket.handle.wait()
        params = self.trainable()
        self.buckets, self.sent = self.make_buckets(reversed(params), self.max_bytes), 0
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}
        for param in params:
            if param not in self.hooked:
                self.hooked.add(param)
                param.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, param):
        if not self.synchronises:
            return
        if not self.buckets:  # backward without our forward
            return
        if self.bucket_of[param].handle:
            raise RuntimeError("backward adds to a gradient that was sent: use checkpoint(..., use_reentrant=False)")
        self.bucket_of[param].waiting_for.discard(param)
        while self.sent < len(self.buckets) and not self.buckets[self.sent].waiting_for:
            self.send_next()

    def send_next(self):
        self.buckets[self.sent].launch()
        self.sent += 1

    def finish_gradient_synchronization(self):
        if not self.buckets:  # backward without our forward
            self.start()
        while self.sent < len(self.buckets):  # some parameter was not used here
            self.send_next()
        used = used_anywhere(self.trainable())
        for bucket in self.buckets:
            bucket.collect(used)
        self.buckets, self.sent = [], 0


class IndividualDDP(BucketedDDP):
    """One all-reduce per parameter, during backward."""

    def __init__(self, module):
        super().__init__(module, bucket_size_mb=0)
