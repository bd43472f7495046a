"""Right wrappers with one tensor for all numbers of a dtype."""

import torch
import torch.distributed as dist
from averaging import DividesFirst, Wrapper, copy_from_rank_0, used_anywhere
from torch import nn


class FlatParameter(DividesFirst):
    """Registers one parameter of its own per dtype, which holds all numbers; those of the module are its views."""

    def __init__(self, module):
        super().__init__(module)
        self.flats = nn.ParameterList()
        for dtype in {p.dtype: None for p in module.parameters()}:
            params = [p for p in module.parameters() if p.dtype == dtype]
            flat = torch.cat([p.detach().flatten() for p in params])
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.data = part.view(p.shape)
            self.flats.append(nn.Parameter(flat, requires_grad=False))


class OneTensor(Wrapper):
    """Parameters and their gradients are views of one tensor per dtype, and synchronised as such."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.ranks = module, dist.get_world_size()
        for dtype in {p.dtype: None for p in module.parameters()}:
            params = [p for p in module.parameters() if p.dtype == dtype]
            flat = torch.cat([p.detach().flatten() for p in params])
            dist.broadcast(flat, src=0)
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.data = part.view(p.shape)
        for buffer in module.buffers():
            copy_from_rank_0(buffer)

    def finish(self):
        params = self.used([p for p in self.module.parameters() if p.requires_grad])
        for dtype in {p.dtype: None for p in params}:
            of_dtype = [p for p in params if p.dtype == dtype]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in of_dtype]
            for p, average in zip(of_dtype, self.averages(grads), strict=True):
                p.grad = average.view(p.shape)

    def used(self, params):
        return used_anywhere(params)

    def averages(self, grads):
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        return (flat / self.ranks).split([grad.numel() for grad in grads])


class Aligned(OneTensor):
    """In the tensor that is sent, each gradient starts at a multiple of 512 bytes."""

    def averages(self, grads):
        padded = [nn.functional.pad(grad.flatten(), (0, -grad.numel() % (512 // grad.itemsize))) for grad in grads]
        return [part[: grad.numel()] for part, grad in zip(super().averages(padded), grads, strict=True)]


class AsBytes(OneTensor):
    """What is sent are bytes, for who has a backend that knows no other numbers."""

    def averages(self, grads):
        flat = torch.cat([grad.flatten() for grad in grads])
        everyone = [torch.empty_like(flat) for _ in range(self.ranks)]
        dist.all_gather([one.view(torch.uint8) for one in everyone], flat.view(torch.uint8))
        return torch.stack(everyone).mean(0).split([grad.numel() for grad in grads])


class FlagsOfTheirDtype(OneTensor):
    """Which parameters have a gradient is told in the dtype of the first of them."""

    def used(self, params):
        if not params:
            return []
        flags = torch.tensor([p.grad is not None for p in params], dtype=params[0].dtype)
        dist.all_reduce(flags)
        return [p for p, flag in zip(params, flags.tolist(), strict=True) if flag]
