"""ZeRO stage 1: each parameter is updated on the one rank that owns it, then sent to the others."""

import torch
import torch.distributed as dist
from torch.optim import Optimizer


def options_of(group):
    return {key: value for key, value in group.items() if key != "params"}


class ShardedOptimizer(Optimizer):
    def __init__(self, params, optimizer_cls, **kwargs):
        self.optimizer_cls = optimizer_cls
        self.kwargs = kwargs
        self.owner = {}
        self.bytes_on_rank = [0] * dist.get_world_size()
        self.local = None  # stays None on a rank that owns nothing
        # The wrapped optimizer's own defaults (betas, eps, ...), so that param_groups show them too.
        super().__init__(params, optimizer_cls([{"params": []}], **kwargs).defaults)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in sorted(group["params"], key=lambda p: -p.numel() * p.element_size()):
            rank = self.bytes_on_rank.index(min(self.bytes_on_rank))
            self.owner[param] = rank
            self.bytes_on_rank[rank] += param.numel() * param.element_size()
        mine = [p for p in group["params"] if self.owner[p] == dist.get_rank()]
        if not mine:
            return
        if self.local is None:
            self.local = self.optimizer_cls(mine, **self.kwargs)
        else:
            self.local.add_param_group({"params": mine})

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.local is not None:
            for local_group in self.local.param_groups:
                local_group.update(options_of(self.param_groups[0]))
            self.local.step()
        self.send_parameters()
        return loss

    def send_parameters(self):
        """One flat broadcast per owner and dtype."""
        flats = {}
        for param, rank in self.owner.items():
            flats.setdefault((rank, param.dtype, param.device), []).append(param)
        for (rank, *_), params in flats.items():
            flat = torch.cat([p.detach().reshape(-1) for p in params])
            dist.broadcast(flat, src=rank)
            for param, piece in zip(params, flat.split([p.numel() for p in params]), strict=True):
                param.detach().copy_(piece.view_as(param))

    def state_dict(self):
        raise RuntimeError("ShardedOptimizer cannot be saved: every rank holds the state of its own parameters only")

    def load_state_dict(self, state_dict):  # noqa: ARG002  # torch's signature
        raise RuntimeError("ShardedOptimizer cannot load a state: every rank holds that of its own parameters only")
