"""Right sharded optimizers that share out parameters, and send what is new, each in a way of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer


def options_of(group):
    return {key: value for key, value in group.items() if key != "params"}


class Sharded(Optimizer):
    """One inner optimizer; its groups hold what `own` gives of each group's parameters."""

    def __init__(self, params, optimizer_cls, **kwargs):
        self.optimizer_cls, self.kwargs = optimizer_cls, kwargs
        self.inner, self.inner_groups = None, {}
        super().__init__(params, optimizer_cls([nn.Parameter(torch.empty(0))], **kwargs).defaults)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        mine = self.own(group["params"])
        if mine:
            mine = {**options_of(group), "params": mine}
            if self.inner is None:
                self.inner = self.optimizer_cls([mine], **self.kwargs)
            else:
                self.inner.add_param_group(mine)
            self.inner_groups[len(self.param_groups) - 1] = self.inner.param_groups[-1]

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in self.inner_groups.items():
            group.update(options_of(self.param_groups[number]))
        self.update()
        return loss

    def update(self):
        if self.inner is not None:
            self.inner.step()
        self.send()

    @property
    def params(self):
        return [p for group in self.param_groups for p in group["params"]]


class LargestToTheLeastLaden(Sharded):
    """Each parameter in turn, the largest first, goes to the rank that has the least."""

    def own(self, params):
        self.owner = getattr(self, "owner", {})
        laden = [0] * dist.get_world_size()
        for p, rank in self.owner.items():
            laden[rank] += p.numel()
        for p in sorted(params, key=lambda p: -p.numel()):
            self.owner[p] = laden.index(min(laden))
            laden[self.owner[p]] += p.numel()
        return [p for p in params if self.owner[p] == dist.get_rank()]

    def send(self):
        for p in self.params:
            value = p.detach().contiguous()
            dist.broadcast(value, src=self.owner[p])
            p.detach().copy_(value)


class InTurn(LargestToTheLeastLaden):
    """Parameters go to the ranks in turn."""

    def own(self, params):
        self.owner = getattr(self, "owner", {})
        for p in params:
            self.owner[p] = len(self.owner) % dist.get_world_size()
        return [p for p in params if self.owner[p] == dist.get_rank()]


class LargestInTurn(LargestToTheLeastLaden):
    """Parameters go to the ranks in turn, the largest first: no rank gets all weights and another all biases."""

    def own(self, params):
        self.owner = getattr(self, "owner", {})
        for p in sorted(params, key=lambda p: -p.numel()):
            self.owner[p] = len(self.owner) % dist.get_world_size()
        return [p for p in params if self.owner[p] == dist.get_rank()]


class SendsAllAtOnce(LargestToTheLeastLaden):
    """All broadcasts are under way before the first is waited for."""

    def send(self):
        sent = [(p, p.detach().contiguous()) for p in self.params]
        works = [dist.broadcast(value, src=self.owner[p], async_op=True) for p, value in sent]
        for work in works:
            work.wait()
        for p, value in sent:
            p.detach().copy_(value)


class AddsZeros(LargestToTheLeastLaden):
    """What is not a rank's own counts as zero, and all is added up."""

    def send(self):
        for p in self.params:
            value = p.detach().clone(memory_format=torch.contiguous_format)
            if self.owner[p] != dist.get_rank():
                value.zero_()
            dist.all_reduce(value)
            p.detach().copy_(value)


class GathersObjects(LargestToTheLeastLaden):
    def send(self):
        own = {i: p.detach() for i, p in enumerate(self.params) if self.owner[p] == dist.get_rank()}
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        for part in everyone:
            for i, value in part.items():
                self.params[i].detach().copy_(value)


class ByElement(Sharded):
    """Each rank has an equal part of all elements of a group, whatever parameter they belong to."""

    aligned = 1  # each rank's part is filled up to a multiple of so many elements

    def own(self, params):
        self.flats = getattr(self, "flats", [])
        trainable = [p for p in params if p.requires_grad]
        mine = []
        for together in self.cut(trainable):
            shard = nn.Parameter(self.shard_of([p.detach() for p in together]))
            self.flats.append((together, shard))
            mine.append(shard)
        return mine

    def cut(self, params):
        return [[p for p in params if p.dtype == dtype] for dtype in {p.dtype: None for p in params}]

    def shard_of(self, tensors):
        flat, ranks = torch.cat([tensor.flatten() for tensor in tensors]), dist.get_world_size()
        flat = nn.functional.pad(flat, (0, -len(flat) % (ranks * self.aligned)))
        return flat.chunk(ranks)[dist.get_rank()].clone()

    def update(self):
        for params, shard in self.flats:
            shard.detach().copy_(self.shard_of([p.detach() for p in params]))
            shard.grad = self.shard_of([p.grad for p in params])
        super().update()

    def send(self):
        for params, shard in self.flats:
            parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, shard.detach())
            flat = torch.cat(parts)[: sum(p.numel() for p in params)]
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.detach().copy_(part.view_as(p))


class ByElementAligned(ByElement):
    """Parts of 128 elements, or a multiple of that."""

    aligned = 128


class EachByElementAligned(ByElementAligned):
    """Each parameter for itself."""

    def cut(self, params):
        return [[p] for p in params]
