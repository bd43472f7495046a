"""Small whole trainings by `reference.training.trainer`, and the same in one process, written without it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reference_models import DTYPE, INPUTS, OUTPUTS, mlp, seeded
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

from reference.data.samplers import DistributedSampler
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.flat import FlatDDP
from reference.ddp.naive import NaiveDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.fsdp.fsdp import FSDP
from reference.training.trainer import Trainer
from reference.zero1.sharded_optimizer import ShardedOptimizer

SIZE, EPOCHS, SEED = 43, 2, 5  # 43 examples divide by nothing: padded shares, short last batches

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed": lambda module: BucketedDDP(module, 300 / 1024**2),  # several buckets
    "torch": DistributedDataParallel,
    "fsdp": FSDP,
}


class Regression(Dataset[tuple[Tensor, Tensor]]):
    """Inputs and targets, drawn from a seed; with `noise`, also from the global generator, as augmentation does."""

    def __init__(self, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SIZE, INPUTS, generator=generator, dtype=DTYPE)
        self.targets = torch.randn(SIZE, OUTPUTS, generator=generator, dtype=DTYPE)
        self.noise = noise

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = self.noise * torch.randn(INPUTS, dtype=DTYPE) if self.noise else 0
        return self.inputs[index] + noise, self.targets[index]


class Labelled(Regression):
    """The same inputs with labels."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs, targets.argmax()


@dataclass(frozen=True)
class Recipe:
    """How to train, whoever does."""

    wrapper: str = "bucketed"
    sharded: bool = False
    optimizer: type[Optimizer] = SGD
    batch_size: int = 4
    accumulate: int = 1
    make: Callable[[], nn.Module] = mlp
    loss_fn: Callable[[Tensor, Tensor], Tensor] = mse_loss
    dataset: Regression = field(default_factory=Regression)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        options = {"momentum": 0.9, "nesterov": True} if self.optimizer is SGD else {"betas": (0.8, 0.9)}
        parameters = list(model.parameters())
        if self.sharded:
            return ShardedOptimizer(parameters, self.optimizer, lr=0.05, weight_decay=0.01, **options)
        return self.optimizer(parameters, lr=0.05, weight_decay=0.01, **options)  # type: ignore[call-arg]


def make_trainer(recipe: Recipe, checkpoint: Path | None = None, **options: Any) -> Trainer:
    """This rank's trainer, of a model that begins with other weights on every rank."""
    model = WRAPPERS[recipe.wrapper](seeded(recipe.make, seed=dist.get_rank()))
    optimizer = recipe.make_optimizer(model)
    return Trainer(
        model,
        optimizer,
        recipe.loss_fn,
        DataLoader(recipe.dataset, recipe.batch_size, sampler=DistributedSampler(recipe.dataset, seed=SEED)),
        accumulate=recipe.accumulate,
        scheduler=StepLR(optimizer, step_size=3, gamma=0.8),
        checkpoint=checkpoint,
        **options,
    )


def result(trainer: Trainer) -> list[Tensor]:
    """The whole model's state, copied."""
    model: Any = trainer.model
    state = model.full_state_dict() if isinstance(model, FSDP) else model.module.state_dict()
    return [value.clone() for value in state.values()]


def train_alone(recipe: Recipe, world_size: int) -> list[Tensor]:
    """What one process makes of rank 0's model with the batches of all ranks."""
    model = seeded(recipe.make, seed=0)
    optimizer = recipe.make_optimizer(model)
    scheduler = StepLR(optimizer, step_size=3, gamma=0.8)
    for epoch in range(EPOCHS):
        batches = _global_batches(recipe, world_size, epoch)
        for first in range(0, len(batches), recipe.accumulate):
            together = batches[first : first + recipe.accumulate]
            optimizer.zero_grad()
            for indices in together:
                outputs = model(recipe.dataset.inputs[indices])
                loss = recipe.loss_fn(outputs, recipe.dataset.targets[indices])
                (loss * len(indices) / sum(map(len, together))).backward()
            optimizer.step()
            scheduler.step()
    return list(model.state_dict().values())


def _global_batches(recipe: Recipe, world_size: int, epoch: int) -> list[list[int]]:
    """The indices of all ranks' k-th batches together, for each k."""
    shares = []
    for rank in range(world_size):
        sampler = DistributedSampler(recipe.dataset, world_size, rank, seed=SEED)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
    size = recipe.batch_size
    return [[i for share in shares for i in share[first : first + size]] for first in range(0, len(shares[0]), size)]


class Interrupted(Exception):  # noqa: N818  not an error
    """What ends a training before its time."""


def interrupted_after(backwards: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The squared error, until it has been computed so often."""
    left = backwards

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted
        return mse_loss(outputs, targets)

    return loss
