"""Right wrappers that average gradients after backward, each in a way of its own."""

import copy
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional


def copy_from_rank_0(tensor):
    value = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(value, src=0)
    tensor.data.copy_(value)


def used_anywhere(params):
    flags = torch.tensor([p.grad is not None for p in params], dtype=torch.int32)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [p for p, used in zip(params, flags.tolist(), strict=True) if used]


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.ranks = dist.get_world_size()
        for tensor in [*module.parameters(), *module.buffers()]:
            copy_from_rank_0(tensor)

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            for buffer in self.module.buffers():
                copy_from_rank_0(buffer)
        return self.module(*args, **kwargs)

    def finish(self):
        for p in used_anywhere([p for p in self.module.parameters() if p.requires_grad]):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
            p.grad.copy_(self.average(p.grad.contiguous()).view_as(p))


class DividesFirst(Wrapper):
    def average(self, grad):
        grad = grad / self.ranks
        dist.all_reduce(grad)
        return grad


class DividesLast(Wrapper):
    def average(self, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / self.ranks


class Gathers(Wrapper):
    def average(self, grad):
        everyone = [torch.empty_like(grad) for _ in range(self.ranks)]
        dist.all_gather(everyone, grad)
        return torch.stack(everyone).mean(0)


class ScattersAndGathers(Wrapper):
    def average(self, grad):
        flat = nn.functional.pad(grad.flatten(), (0, -grad.numel() % self.ranks))
        own = torch.empty_like(flat[: len(flat) // self.ranks])
        dist.reduce_scatter_tensor(own, flat)
        dist.all_gather_into_tensor(flat, own / self.ranks)
        return flat[: grad.numel()]


class ThroughRank0(Wrapper):
    def average(self, grad):
        grad = grad.clone()
        dist.reduce(grad, dst=0)
        grad /= self.ranks
        dist.broadcast(grad, src=0)
        return grad


class AroundTheRing(Wrapper):
    """Every rank hands on what it was given, and adds up in the order of ranks."""

    def average(self, grad):
        rank, found = dist.get_rank(), {dist.get_rank(): grad.clone()}
        for hop in range(self.ranks - 1):
            coming = torch.empty_like(grad)
            given = found[(rank - hop) % self.ranks]
            sent = dist.isend(given, (rank + 1) % self.ranks)
            dist.recv(coming, (rank - 1) % self.ranks)
            sent.wait()
            found[(rank - hop - 1) % self.ranks] = coming
        return sum(found[other] for other in range(self.ranks)) / self.ranks


class InDoublePrecision(Wrapper):
    def average(self, grad):
        wide = grad.to(torch.promote_types(grad.dtype, torch.float64))
        dist.all_reduce(wide)
        return (wide / self.ranks).to(grad.dtype)


class Functional(Wrapper):
    def average(self, grad):
        return functional.wait_tensor(functional.all_reduce(grad, "sum", dist.group.WORLD)) / self.ranks


class InItsOwnGroup(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.group = dist.new_group()

    def average(self, grad):
        grad = grad / self.ranks
        dist.all_reduce(grad, group=self.group)
        return grad


class InPairs(Wrapper):
    """Ranks add up in pairs, the first of each with those of other pairs, who tell their partners."""

    def __init__(self, module):
        super().__init__(module)
        pairs = [list(range(self.ranks))[first : first + 2] for first in range(0, self.ranks, 2)]
        self.pairs = {}
        for pair in pairs:
            group = dist.new_group(pair)
            self.pairs.update(dict.fromkeys(pair, (group, pair[0])))
        self.firsts = dist.new_group([pair[0] for pair in pairs])

    def average(self, grad):
        grad = grad / self.ranks
        group, first = self.pairs[dist.get_rank()]
        dist.reduce(grad, dst=first, group=group)
        if dist.get_rank() == first:
            dist.all_reduce(grad, group=self.firsts)
        dist.broadcast(grad, src=first, group=group)
        return grad


class OfACopy(DividesFirst):
    def __init__(self, module):
        super().__init__(copy.deepcopy(module))


class OfAPickle(DividesFirst):
    def __init__(self, module):
        super().__init__(pickle.loads(pickle.dumps(module)))  # noqa: S301  its own
