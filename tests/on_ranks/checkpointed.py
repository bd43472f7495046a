"""A training of which everything that a checkpoint keeps matters to what comes next."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from reference_models import DTYPE, INPUTS, linear, seeded
from reference_wrappers import NAIVE, Wrapper
from side_by_side import batch, loss
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from reference.training.checkpoint import load_checkpoint, save_checkpoint
from reference.zero1.sharded_optimizer import ShardedOptimizer

TORCH = Wrapper(DistributedDataParallel, lambda _model, _optimizer: None)


def dropping() -> nn.Module:
    """A model that draws random numbers, and has statistics."""
    return nn.Sequential(linear(INPUTS), nn.BatchNorm1d(6, dtype=DTYPE), nn.Dropout(0.5), nn.Tanh(), linear(6, 3))


class Training:
    """All that a checkpoint keeps, made anew: other weights on every rank, other random numbers."""

    def __init__(self, wrapper: Wrapper = NAIVE, *, sharded: bool = False, make: Callable[[], nn.Module] = dropping):
        self.wrapper, self.module = wrapper, seeded(make, seed=random.randrange(1000))  # noqa: S311
        self.model = wrapper.wrap(self.module)
        options = {"lr": 0.01, "betas": (0.8, 0.95)}
        parameters = list(self.model.parameters())
        self.optimizer: Optimizer = (
            ShardedOptimizer(parameters, AdamW, **options) if sharded else AdamW(parameters, **options)
        )
        self.scheduler = StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)

    def train(self, steps: Iterable[int]) -> list[Tensor]:
        """Train, and give the parameters and buffers that came out."""
        for step in steps:
            self.wrapper.before_batch(self.model, self.optimizer)
            self.optimizer.zero_grad()
            self.scaler.scale(loss(self.model, [batch(step, dist.get_rank())])).backward()
            self.wrapper.after_backward(self.model, self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        return [value.clone() for value in self.module.state_dict().values()]

    def save(self, path: Path, epoch: int = 7) -> None:
        save_checkpoint(path, self.model, self.optimizer, self.scaler, epoch, scheduler=self.scheduler)

    def load(self, path: Path) -> int:
        return load_checkpoint(path, self.model, self.optimizer, self.scaler, scheduler=self.scheduler)


def seed_generators() -> None:
    """Every rank draws numbers of its own."""
    random.seed(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    np.random.seed(dist.get_rank())  # noqa: NPY002


def assert_equal(mine: list[Tensor], others: list[Tensor]) -> None:
    assert len(mine) == len(others)
    for one, other in zip(mine, others, strict=True):
        assert torch.equal(one, other)
