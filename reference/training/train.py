"""The whole assignment put together: train a model on N ranks, with the components that the command line chooses.

    python -m reference.train --model cnn --data synthetic --ddp bucketed --world-size 2 --epochs 2
    python -m reference.train --world-size 2 --amp bf16 --accumulate 4 --sync-bn --sharded --checkpoint last.pt
    python -m reference.train --model transformer-tiny --world-size 2 --epochs 1
    torchrun --nproc-per-node 2 -m reference.train --epochs 2

Options and advice: docs/training.md.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from reference import models
from reference.communication.launch import launch
from reference.communication.process_group import current_device
from reference.data import datasets
from reference.data.samplers import DistributedSampler, EvaluationSampler
from reference.data.seeds import ddp_generator, rank_seed, seed_worker
from reference.fsdp.fsdp import FSDP
from reference.training.interruption import Interrupted, Interruption, ranks_stop_first
from reference.training.mixed_precision import precision
from reference.training.options import WRAPPERS, Options, parse
from reference.training.sync_batchnorm import convert_sync_batchnorm
from reference.training.trainer import Trainer
from reference.zero1.sharded_optimizer import ShardedOptimizer

_INTERRUPTED = 128 + signal.SIGINT  # as a shell reports it


def train(options: Options) -> None:
    """Train with the given options. Runs on every rank, inside the process group."""
    device = current_device()
    if device.type == "cpu":  # ranks that each use all cores slow each other down
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    with Interruption(device) as interruption:
        trainer = make_trainer(options, device)
        trainer.interruption = interruption
        _print_summary(options, trainer)
        if options.resume is not None:
            trainer.resume(options.resume)
        try:
            trainer.train(options.epochs, evaluation=make_evaluation_loader(options))
        except Interrupted:
            _leave_checkpoint(options, trainer)
        else:
            if interruption.by_now_on_any_rank():  # in the last step, or in the evaluation after it
                _leave_checkpoint(options, trainer)


def _leave_checkpoint(options: Options, trainer: Trainer) -> None:
    """Save after an interruption, and say how to go on."""
    trainer.checkpoint = options.checkpoint or Path("interrupted.pt")
    trainer.save()
    epoch, steps = trainer.progress.epoch, trainer.progress.steps
    where = f"in epoch {epoch + 1}, after step {steps}" if epoch < options.epochs else f"after the last step, {steps}"
    more = "to continue, give the same options and" if epoch < options.epochs else "to train on, give more --epochs and"
    trainer.console.print(
        f"Stopped by Ctrl-C {where}. Everything up to this step is in {trainer.checkpoint}: {more} --resume "
        f"{trainer.checkpoint}",
        soft_wrap=True,
        highlight=False,
    )


def make_trainer(options: Options, device: torch.device) -> Trainer:
    """Put the components together on this rank.

    Raises:
        ValueError: there are too few examples for one batch on every rank, or a component refuses its options.
    """
    torch.manual_seed(options.seed)
    module = models.build(options.model).to(device)
    torch.manual_seed(rank_seed(options.seed, dist.get_rank()))  # each rank has its own dropout masks
    if options.sync_bn:
        convert_sync_batchnorm(module)
    autocast, scaler = precision(options.amp, device)
    module.forward = autocast(module.forward)
    model = WRAPPERS[options.ddp](module)
    return Trainer(
        model,
        _optimizer(options, model),
        loss_fn=autocast(mean_cross_entropy),
        loader=_training_loader(options),
        accumulate=options.accumulate,
        scaler=scaler,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
        whole_model=_whole_model(options, model) if isinstance(model, FSDP) else None,
    )


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all targets: of outputs (batch, classes), or (batch, length, vocabulary) of a language model."""
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _optimizer(options: Options, model: nn.Module) -> Optimizer:
    if options.sharded:
        return ShardedOptimizer(model.parameters(), AdamW, lr=options.lr)
    return AdamW(model.parameters(), lr=options.lr)


def _training_loader(options: Options) -> DataLoader[tuple[Tensor, Tensor]]:
    dataset = _dataset(options, train=True)
    sampler = DistributedSampler(dataset, seed=options.seed)
    loader = _loader(options, dataset, sampler, drop_last=True)  # the learning rate is for whole batches
    if len(loader) == 0:
        raise ValueError(
            f"{len(dataset)} examples do not fill a batch of {options.batch_size} on each of {dist.get_world_size()} "
            f"ranks: use --batch-size {len(sampler)} or less"
        )
    return loader


def make_evaluation_loader(options: Options) -> DataLoader[tuple[Tensor, Tensor]]:
    """This rank's part of the test examples; the parts differ by at most one example."""
    dataset = _dataset(options, train=False)
    return _loader(options, dataset, EvaluationSampler(dataset), drop_last=False)


def _dataset(options: Options, *, train: bool) -> Any:
    shape = models.IMAGE_SHAPES.get(options.model)
    if shape is None:
        return datasets.SyntheticText(train=train)
    return datasets.build(options.data, options.data_root, train=train, shape=shape)


def _loader(options: Options, dataset: Any, sampler: Any, *, drop_last: bool) -> DataLoader[tuple[Tensor, Tensor]]:
    return DataLoader(
        dataset,
        options.batch_size,
        sampler=sampler,
        drop_last=drop_last,
        num_workers=options.workers,
        worker_init_fn=seed_worker,
        generator=ddp_generator(options.seed),
        pin_memory=current_device().type == "cuda",
    )


def _whole_model(options: Options, model: FSDP) -> Callable[[], nn.Module]:
    """A function that makes an unsharded copy of the model, to evaluate it."""

    def whole() -> nn.Module:
        module = models.build(options.model).to(current_device())
        module.load_state_dict(model.full_state_dict())
        return module

    return whole


def _print_summary(options: Options, trainer: Trainer) -> None:
    ranks, per_step = dist.get_world_size(), options.batch_size * options.accumulate
    trainer.console.print(
        f"{options.model} on {options.data}, {options.ddp} over {ranks} ranks ({dist.get_backend()}), "
        f"{len(trainer.loader)} batches of {options.batch_size} per rank and epoch, "
        f"{per_step * ranks} examples a step, learning rate {options.lr:g}",
        soft_wrap=True,
    )


def main() -> None:
    """Read the command line, start the ranks (or use those of the torchrun job), and train."""
    options = parse()
    with ranks_stop_first() as was_interrupted, suppress(KeyboardInterrupt):
        launch(train, options.world_size, options, backend=options.backend)
    if was_interrupted():
        sys.exit(_INTERRUPTED)
