"""A right FSDP, as small as can be: a module without parameters that is called with what was gathered."""

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call


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
            dist.broadcast(p.data, 0)
            self.shapes[name] = p.shape
            self.shards.append(nn.Parameter(own(padded(p.detach().flatten())), requires_grad=p.requires_grad))
        self.kept = dict(module.named_buffers())
        firsts = {p: name for name, p in module.named_parameters()}  # a tied one has more names than one
        self.first = {name: firsts[p] for name, p in module.named_parameters(remove_duplicate=False)}
        self.__dict__["inner"] = module.to("meta")

    def whole(self, dtype):
        shards = zip(self.shapes.items(), self.shards, strict=True)
        return {name: Gather.apply(shard, shape, dtype or shard.dtype) for (name, shape), shard in shards}

    def forward(self, tokens, **kwargs):
        whole = self.whole(self.compute_dtype)
        named = {name: whole[first] for name, first in self.first.items()}
        return functional_call(self.inner, {**named, **self.kept}, tokens, kwargs)


def get_fsdp(module, compute_dtype=None):
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model, optimizer):
    pass


def fsdp_gather_full_params(fsdp_model):
    with torch.no_grad():
        return fsdp_model.whole(None)
