"""What torch has itself, behind the adapters' names."""

from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Replicated(DistributedDataParallel):
    def __init__(self, module, **options):
        super().__init__(module, **options)

    def finish(self):
        pass


class AsViews(Replicated):
    def __init__(self, module):
        super().__init__(module, gradient_as_bucket_view=True)


class Static(Replicated):
    def __init__(self, module):
        super().__init__(module, static_graph=True)


class FindsUnused(Replicated):
    def __init__(self, module):
        super().__init__(module, find_unused_parameters=True)


class InManyBuckets(Replicated):
    def __init__(self, module):
        super().__init__(module, bucket_cap_mb=1e-5)


class InBucketsOfASize(Replicated):
    def __init__(self, module, bucket_size_mb):
        super().__init__(module, bucket_cap_mb=2**10 if bucket_size_mb is None else bucket_size_mb)


class HookedByTorch(Replicated):
    def __init__(self, module):
        super().__init__(module)
        self.register_comm_hook(None, allreduce_hook)


class HookedByHand(Replicated):
    def __init__(self, module):
        super().__init__(module)
        self.register_comm_hook(None, gathered)


def gathered(_, bucket):
    own = bucket.buffer()
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    work = dist.all_gather(everyone, own, async_op=True)
    return work.get_future().then(lambda _: torch.stack(everyone).mean(0))


def redundant(params, optimizer_cls, **kwargs):
    return ZeroRedundancyOptimizer(params, optimizer_class=optimizer_cls, **kwargs)


def redundant_in_buckets(params, optimizer_cls, **kwargs):
    return ZeroRedundancyOptimizer(params, optimizer_class=optimizer_cls, parameters_as_bucket_view=True, **kwargs)


def sharded(module, compute_dtype):
    for p in module.parameters():
        dist.broadcast(p.data, src=0)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype)
    holders = Counter(p for part in module.modules() for p in part.parameters(recurse=False))
    for part in list(module.modules())[1:]:
        own = list(part.parameters(recurse=False))
        if own and all(holders[p] == 1 for p in own):  # those that share a parameter are one group, with the rest
            fully_shard(part, mp_policy=policy)
    return fully_shard(module, mp_policy=policy)


def finish(*_):
    pass


def whole(fsdp_model):
    return {name: p.full_tensor() for name, p in fsdp_model.named_parameters()}
