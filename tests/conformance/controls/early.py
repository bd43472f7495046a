"""Right sharded optimizers that do not wait until all parameters are updated before they send the first."""

import torch
import torch.distributed as dist
from sharding import options_of
from torch import nn
from torch.optim import Optimizer


class SendsAsItSteps(Optimizer):
    """Each parameter is on its way to the others while the next one is updated."""

    def __init__(self, params, optimizer_cls, **kwargs):
        self.make = lambda p, options: optimizer_cls([{"params": [p], **options}], **kwargs)
        self.owner, self.group_of, self.inner, self.sent = {}, {}, {}, []
        self.laden = [0] * dist.get_world_size()
        super().__init__(params, optimizer_cls([nn.Parameter(torch.empty(0))], **kwargs).defaults)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in sorted(group["params"], key=lambda p: -p.numel()):
            self.owner[p] = self.laden.index(min(self.laden))
            self.laden[self.owner[p]] += p.numel()
            self.group_of[p] = group
            if self.owner[p] == dist.get_rank():
                self.inner[p] = self.make(p, options_of(group))

    def step(self, closure=None):
        loss = self.loss_of(closure)
        for p in self.owner:
            self.update(p)
        self.wait()
        return loss

    def state_dict(self):
        inner = {i: self.inner[p].state_dict() for i, p in enumerate(self.owner) if p in self.inner}
        return {"inner": inner, "options": [options_of(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict["options"], strict=True):
            group.update(options)
        for p, inner in zip(self.owner, map(state_dict["inner"].get, range(len(self.owner))), strict=True):
            if p in self.inner:
                self.inner[p].load_state_dict(inner)

    def loss_of(self, closure):
        with torch.enable_grad():
            return None if closure is None else closure()

    def update(self, p):
        if p in self.inner:
            self.inner[p].param_groups[0].update(options_of(self.group_of[p]))
            self.inner[p].step()
        value = p.detach().clone(memory_format=torch.contiguous_format)
        self.sent.append((p, value, dist.broadcast(value, src=self.owner[p], async_op=True)))

    def wait(self):
        for p, value, work in self.sent:
            work.wait()
            p.detach().copy_(value)
        self.sent = []


class StepsInBackward(SendsAsItSteps):
    """A parameter is updated and sent as soon as backward has its gradient; `step` waits for what is on its way."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.update)

    def step(self, closure=None):
        loss = self.loss_of(closure)
        self.wait()
        return loss
