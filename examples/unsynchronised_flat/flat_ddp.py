"""Flat DDP: all gradients in one all-reduce, sent when the last of them is there."""

import torch
import torch.distributed as dist
from torch import nn


def copy_from_rank0(tensors):
    for tensor in tensors:
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)  # bytes: gloo does not know every dtype
        tensor.data.copy_(value)


class FlatDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handle = None
        copy_from_rank0([*module.parameters(), *module.buffers()])
        self.params = [p for p in module.parameters() if p.requires_grad]
        for param in self.params:
            param.register_hook(self.on_gradient)

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            copy_from_rank0(self.module.buffers())
        return self.module(*args, **kwargs)

    def on_gradient(self, grad):
        if all(p.grad is not None for p in self.params):
            self.flat = torch.cat([p.grad.reshape(-1) for p in self.params]) / dist.get_world_size()
            self.handle = dist.all_reduce(self.flat, async_op=True)
        return grad

    def finish_gradient_synchronization(self):
        if self.handle is None:
            return
        self.handle.wait()
        self.handle = None
        for param, piece in zip(self.params, self.flat.split([p.numel() for p in self.params]), strict=True):
            param.grad.copy_(piece.view_as(param))
