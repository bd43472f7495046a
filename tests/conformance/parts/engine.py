"""A right engine, as small as can be: gradients are averaged, and the owner of a parameter updates it."""

import torch
import torch.distributed as dist


class Engine:
    def __init__(self, module, optimizer_cls, options):
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            value = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(value, src=0)
            tensor.detach().copy_(value)
        self.params = list(module.parameters())
        self.owner = {p: number % dist.get_world_size() for number, p in enumerate(self.params)}
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.optimizer = optimizer_cls(mine, **options) if mine else None

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.average_gradients()
        if self.optimizer is not None:
            self.optimizer.step()
        self.send_parameters()
        self.module.zero_grad()

    def average_gradients(self):
        for p in self.params:
            used = torch.tensor(float(p.grad is not None))
            dist.all_reduce(used)
            if not used:
                continue
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            flat = grad.reshape(-1) / dist.get_world_size()
            dist.all_reduce(flat)
            p.grad = flat.view(p.shape)

    def send_parameters(self):
        for p in self.params:
            flat = p.detach().reshape(-1)
            dist.broadcast(flat, src=self.owner[p])
            p.detach().copy_(flat.view(p.shape))

    def full_parameters(self):
        return dict(self.module.named_parameters())


def get_engine(module, optimizer_cls, **options):
    return Engine(module, optimizer_cls, options)
