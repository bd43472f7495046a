"""Right engines that are unusual."""

import torch
import torch.distributed as dist


class ByElement:
    """Each rank updates its part of one flat tensor of all trainable parameters, as DeepSpeed's stage 1 does."""

    def __init__(self, module, optimizer_cls, **options):
        self.module, self.ranks = module, dist.get_world_size()
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.copy_(broadcast(tensor))
        self.params = [p for p in module.parameters() if p.requires_grad]
        elements = sum(p.numel() for p in self.params)
        self.length = -(-elements // self.ranks)
        self.part = torch.nn.Parameter(self.own(self.flat(self.params)))
        self.optimizer = optimizer_cls([self.part], **options)

    def flat(self, tensors):
        """All elements, and zeros up to a multiple of the number of ranks, in the widest dtype."""
        parts = [t.detach().reshape(-1).double() for t in tensors]
        flat = torch.cat(parts)
        return torch.nn.functional.pad(flat, (0, self.length * self.ranks - len(flat)))

    def own(self, flat):
        return flat[dist.get_rank() * self.length :][: self.length].clone()

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        gradients = self.flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
        dist.all_reduce(gradients)
        self.part.grad = self.own(gradients) / self.ranks
        self.optimizer.step()
        parts = [torch.empty_like(self.part) for _ in range(self.ranks)]
        dist.all_gather(parts, self.part.detach())
        pieces = torch.cat(parts)[: sum(p.numel() for p in self.params)].split([p.numel() for p in self.params])
        for p, piece in zip(self.params, pieces, strict=True):
            p.detach().copy_(piece.view(p.shape))
            p.grad = None

    def full_parameters(self):
        return self.module.state_dict(keep_vars=True)


class ReducesInBackward(ByElement):
    """Reduces in each backward, and adds up what is reduced."""

    reduced = 0

    def backward(self, loss):
        loss.backward()
        gradients = self.flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
        dist.all_reduce(gradients)
        self.reduced = self.reduced + gradients / self.ranks
        for p in self.params:
            p.grad = None

    def step(self):
        sizes = [p.numel() for p in self.params]
        for p, piece in zip(self.params, self.reduced[: sum(sizes)].split(sizes), strict=True):
            p.grad = piece.view(p.shape).to(p.dtype)
        self.reduced = 0
        super().step()


def broadcast(tensor):
    value = tensor.detach().contiguous()
    dist.broadcast(value, src=0)
    return value
