"""Right wrappers that communicate during backward, each in a way of its own.

They launch in the order in which gradients come, which has to be the same on all ranks.
"""

import math
import random
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from averaging import Wrapper, copy_from_rank_0


def ranks():
    return dist.get_world_size()


class Launches(Wrapper):
    """Keeps what has been launched, and hooks the parameters that need it, also those that were frozen before."""

    def __init__(self, module):
        super().__init__(module)
        self.hooked, self.launched = set(), []

    def forward(self, *args, **kwargs):
        for p in self.module.parameters() if torch.is_grad_enabled() else ():
            if p.requires_grad and p not in self.hooked:
                self.hooked.add(p)
                self.hook(p)
        return super().forward(*args, **kwargs)

    def launch(self, p):
        p.grad /= self.ranks
        self.launched.append((p, dense := p.grad.contiguous(), dist.all_reduce(dense, async_op=True)))

    def finish(self):
        for p, dense, work in self.launched:
            work.wait()
            p.grad.copy_(dense)
        self.launched.clear()


class OnAccumulateGrad(Launches):
    """Hooks on the nodes that accumulate gradients, as torch's own DDP has them."""

    def __init__(self, module):
        super().__init__(module)
        self.nodes = []  # they end with the last reference

    def hook(self, p):
        node = p.expand_as(p).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: self.launch(p))
        self.nodes.append(node)


class WaitsForFutures(Launches):
    def hook(self, p):
        p.register_post_accumulate_grad_hook(self.launch)

    def finish(self):
        torch.futures.collect_all([work.get_future() for *_, work in self.launched]).wait()
        super().finish()


class FromItsOwnThread(Launches):
    """A thread sends one gradient after the other, with calls that block it; whoever finishes waits for it."""

    def __init__(self, module):
        super().__init__(module)
        self.thread = ThreadPoolExecutor(1)

    def hook(self, p):
        p.register_post_accumulate_grad_hook(self.hand_over)

    def hand_over(self, p):
        grad = p.grad.contiguous() / self.ranks
        self.launched.append((p, grad, self.thread.submit(dist.all_reduce, grad)))

    def finish(self):
        for p, grad, sent in self.launched:
            sent.result()
            p.grad.copy_(grad)
        self.launched.clear()


class Blocks(Launches):
    """Averages every gradient before it is accumulated; backward waits for that."""

    def hook(self, p):
        p.register_hook(self.averaged)

    def averaged(self, grad):
        grad = grad.contiguous() / self.ranks
        dist.all_reduce(grad)
        return grad


class BucketsInAnyOrder(Wrapper):
    """Parameters are dealt to buckets at random, alike on all ranks; a bucket is sent as soon as it is full.

    The first two, whose gradients come last, share a bucket: two that wait for them might be all there are.
    """

    def __init__(self, module):
        super().__init__(module)
        self.hooked, self.sent = set(), []

    def dealt(self, last, rest):
        return [last, *(rest[first : first + 2] for first in range(0, len(rest), 2))]

    def forward(self, *args, **kwargs):
        params = [p for p in self.module.parameters() if p.requires_grad]
        last, rest = params[:2], params[2:]
        random.Random(len(rest)).shuffle(rest)  # noqa: S311  anything but the models' own order
        buckets = self.dealt(last, rest)
        self.bucket_of = {p: bucket for bucket in buckets for p in bucket}
        self.waiting_for = {id(bucket): len(bucket) for bucket in buckets}
        for p in params:
            if p not in self.hooked:
                self.hooked.add(p)
                p.register_post_accumulate_grad_hook(self.on_gradient)
        return super().forward(*args, **kwargs)

    def on_gradient(self, p):
        bucket = self.bucket_of[p]
        self.waiting_for[id(bucket)] -= 1
        if not self.waiting_for[id(bucket)]:
            for dtype in {p.dtype: None for p in bucket}:
                params = [p for p in bucket if p.dtype == dtype]
                flat = torch.cat([p.grad.flatten() for p in params]) / self.ranks
                self.sent.append((params, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for params, flat, work in self.sent:
            work.wait()
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.sent.clear()


class BucketsOfASize(BucketsInAnyOrder):
    """Buckets of a size, the first two parameters last; one is full once it has reached it, so it may hold more."""

    def __init__(self, module, bucket_size_mb):
        super().__init__(module)
        self.capacity = math.inf if bucket_size_mb is None else bucket_size_mb * 2**20

    def dealt(self, last, rest):
        buckets = [[]]
        for p in [*rest, *last]:
            if sum(one.nbytes for one in buckets[-1]) >= self.capacity and buckets[-1]:
                buckets.append([])
            buckets[-1].append(p)
        return buckets


class BucketsOfAMillionBytes(BucketsOfASize):
    """A megabyte has 10^6 bytes."""

    def __init__(self, module, bucket_size_mb):
        super().__init__(module, None if bucket_size_mb is None else bucket_size_mb * 10**6 / 2**20)


class BucketsOfAlignedGradients(BucketsOfASize):
    """A gradient counts as many bytes as it takes in a buffer where each starts at a multiple of 512 bytes."""

    def dealt(self, last, rest):
        buckets, filled = [], math.inf
        for p in [*rest, *last]:
            if filled >= self.capacity:
                buckets.append([])
                filled = 0
            buckets[-1].append(p)
            filled += p.nbytes + -p.nbytes % 512
        return buckets


class BucketsBesideFlags(BucketsOfASize):
    """Ranks tell one another, in the parameters' own dtype, which gradients they have."""

    def finish(self):
        params = [p for p in self.module.parameters() if p.requires_grad]
        if params:
            dist.all_reduce(params[0].new_tensor([p.grad is not None for p in params]))
        super().finish()


class OneBucketBesideFlags(BucketsBesideFlags):
    def __init__(self, module):
        super().__init__(module, None)


class BucketsFilledToTheByte(Launches):
    """Gradients form one stream, cut into buckets of a size wherever that falls, as in a flat buffer of all of them."""

    def __init__(self, module, bucket_size_mb):
        super().__init__(module)
        self.capacity = math.inf if bucket_size_mb is None else bucket_size_mb * 2**20
        self.streams, self.came = {}, []

    def hook(self, p):
        p.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, p):
        self.came.append(p)
        stream = torch.cat([self.streams.pop(p.dtype, p.grad.new_empty(0)), p.grad.flatten() / self.ranks])
        size = max(1, int(min(self.capacity, 2**40)) // p.element_size())
        while stream.numel() >= size:
            self.send(stream[:size].clone())
            stream = stream[size:]
        self.streams[p.dtype] = stream

    def send(self, bucket):
        self.launched.append((bucket, dist.all_reduce(bucket, async_op=True)))

    def finish(self):
        for rest in self.streams.values():
            if rest.numel():
                self.send(rest)
        for _, work in self.launched:
            work.wait()
        for dtype in self.streams:
            params = [p for p in self.came if p.dtype == dtype]
            whole = torch.cat([bucket for bucket, _ in self.launched if bucket.dtype == dtype])
            for p, part in zip(params, whole.split([p.numel() for p in params]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.streams, self.came, self.launched = {}, [], []


def hooked(module):
    """Return the module itself, with hooks."""
    for tensor in [*module.parameters(), *module.buffers()]:
        copy_from_rank_0(tensor)
    launched = []

    def launch(p):
        p.grad /= ranks()
        launched.append((p, dense := p.grad.contiguous(), dist.all_reduce(dense, async_op=True)))

    def finish():
        for p, dense, work in launched:
            work.wait()
            p.grad.copy_(dense)
        launched.clear()

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(launch)
    module.finish = finish
    return module
