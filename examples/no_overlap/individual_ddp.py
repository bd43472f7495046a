"""DDP with individual parameters: one asynchronous all-reduce each, all in flight together."""

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


class IndividualDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        copy_from_rank0([*module.parameters(), *module.buffers()])

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            copy_from_rank0(self.module.buffers())
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        params = [p for p in self.module.parameters() if p.requires_grad]
        used = used_anywhere(params)
        handles = []
        for param in params:
            if param not in used:
                continue
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            grad = param.grad.detach().contiguous() / dist.get_world_size()
            handles.append((param, grad, dist.all_reduce(grad, async_op=True)))
        for param, grad, handle in handles:
            handle.wait()
            param.grad.detach().copy_(grad)
