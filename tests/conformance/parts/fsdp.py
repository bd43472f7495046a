"""A right FSDP, as small as can be: layers without parameters that are called with what was gathered.

They are called again in backward, so that autograd keeps nothing that is whole.
"""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, shape, dtype):
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, shard.detach())
        ctx.dtype = shard.dtype
        return torch.cat(parts)[: shape.numel()].view(shape).to(dtype)

    @staticmethod
    def backward(ctx, grad):
        grad = padded(grad.to(ctx.dtype).flatten())
        dist.all_reduce(grad)
        return own(grad) / dist.get_world_size(), None, None


def padded(flat):
    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))


def own(flat):
    return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()


class FSDP(nn.Module):
    def __init__(self, module, compute_dtype):
        super().__init__()
        self.compute_dtype, self.shapes, self.shards = compute_dtype, {}, nn.ParameterList()
        for name, p in module.named_parameters():
            value = p.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(value, 0)
            p.data.copy_(value)
            self.shapes[name] = p.shape
            self.shards.append(nn.Parameter(own(padded(p.detach().flatten())), requires_grad=p.requires_grad))
        self.kept = dict(module.named_buffers())
        firsts = {p: name for name, p in module.named_parameters()}  # a tied one has more names than one
        self.first = {name: firsts[p] for name, p in module.named_parameters(remove_duplicate=False)}
        self.__dict__["inner"] = module.to("meta")
        for path, layer in list(module.named_modules())[1:]:
            if list(layer.parameters(recurse=False)):
                call = partial(self.call, path, copy.deepcopy(layer))
                layer.forward = partial(checkpoint, call, use_reentrant=False)

    def whole(self, dtype, names):
        shards = zip(self.shapes.items(), self.shards, strict=True)
        return {n: Gather.apply(shard, shape, dtype or shard.dtype) for (n, shape), shard in shards if n in names}

    def call(self, path, layer, *args, **kwargs):
        firsts = {name: first for name, first in self.first.items() if name.rpartition(".")[0] == path}
        whole = self.whole(self.compute_dtype, firsts.values())
        named = {name.rpartition(".")[2]: whole[first] for name, first in firsts.items()}
        return functional_call(layer, named if path else {**named, **self.kept}, args, kwargs)

    def forward(self, *args, **kwargs):
        return self.call("", self.inner, *args, **kwargs)


def get_fsdp(module, compute_dtype=None):
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model, optimizer):
    pass


def fsdp_gather_full_params(fsdp_model):
    with torch.no_grad():
        return fsdp_model.whole(None, fsdp_model.shapes)
