"""The training loop around a data-parallel model: epochs of steps, checkpoints between steps, output on rank 0 only.

Every rank runs the same loop on its own part of the data. Their collectives match because all ranks take the same
number of steps (the sampler pads or drops examples), and save and evaluate after the same steps. They shuffle with the
same permutation (`set_epoch`), so that each example goes to one rank. A resumed training continues as an uninterrupted
one would, because progress is counted in whole steps (`progress`).

Source: PyTorch's documentation of `torch.utils.data.distributed.DistributedSampler` (set_epoch); Goyal et al.,
"Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 3 (what a step is to the learning rate).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from reference.collectives import broadcast
from reference.training.accumulation import accumulate_and_step
from reference.training.checkpoint import load_checkpoint, save_checkpoint
from reference.training.epoch_bar import EpochBar
from reference.training.evaluation import evaluate
from reference.training.interruption import Interrupted, Interruption
from reference.training.progress import Batch, EpochBatches, Progress
from reference.training.rank_zero import rank, world_size


@dataclass(frozen=True)
class EpochResult:
    """The result of one epoch, the same on every rank.

    Attributes:
        epoch: number of the epoch, from 1.
        loss: mean over the examples of all ranks, since the epoch began or was resumed; None if it was resumed after
            its last step.
        accuracy: on the evaluation data after the epoch, 0 to 1; None without evaluation data.
    """

    epoch: int
    loss: float | None
    accuracy: float | None


@dataclass
class Trainer:
    """Trains a wrapped model. Make it and call its methods on every rank.

    Attributes:
        model: wrapped, with `no_sync` and `finish_gradient_synchronization`.
        optimizer: an optimizer of the model's parameters, sharded or not.
        loss_fn: from outputs and targets to the mean loss.
        loader: this rank's batches of (inputs, targets), as many as on every rank; its sampler has `set_epoch`.
        accumulate: number of microbatches (batches of the loader) in a step. The last step of an epoch may have fewer.
        scaler: a GradScaler that has the same scale on all ranks.
        scheduler: of the learning rate; it advances after every step.
        checkpoint: file to save to after every epoch.
        checkpoint_every: save after every `checkpoint_every` steps, too.
        console: where to print; by default rank 0's terminal, and nowhere on the other ranks.
        progress: how far the training is.
        whole_model: makes the model to evaluate, if `model` communicates in forward, as FSDP does: ranks may have
            different numbers of evaluation batches. Called on every rank.
        interruption: asks after each step whether a rank was interrupted; then `train` raises `Interrupted`.
    """

    model: nn.Module
    optimizer: Optimizer
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    loader: DataLoader[Batch]
    accumulate: int = 1
    scaler: Any = None
    scheduler: LRScheduler | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    console: Console = field(default_factory=lambda: Console(quiet=rank() != 0))
    progress: Progress = field(default_factory=Progress)
    whole_model: Callable[[], nn.Module] | None = None
    interruption: Interruption | None = None

    def __post_init__(self) -> None:
        self._device = next(self.model.parameters()).device
        self._batches = EpochBatches(self.loader)

    def train(self, epochs: int, evaluation: Iterable[Batch] | None = None) -> list[EpochResult]:
        """Train until `epochs` epochs are over, those before a resumed checkpoint included.

        Args:
            epochs: number of epochs in all.
            evaluation: this rank's batches of the evaluation data, for the accuracy after each epoch.

        Returns:
            The results of the epochs that ran here.

        Raises:
            Interrupted: on every rank, after the same step.
        """
        results = []
        while self.progress.epoch < epochs:
            began, examples_before = time.perf_counter(), self.progress.examples
            loss = self._train_epoch(f"epoch {self.progress.epoch + 1}/{epochs}")
            seconds, examples = time.perf_counter() - began, self.progress.examples - examples_before
            self.progress.epoch_done()
            accuracy = None if evaluation is None else self.evaluate(evaluation)
            results.append(EpochResult(self.progress.epoch, loss, accuracy))
            shown = "resumed after its last step" if loss is None else f"loss {loss:.4f}"
            shown += "" if accuracy is None else f", accuracy {accuracy:.1%}"
            speed = f"{examples / seconds:.0f} examples/s on {world_size()} ranks"
            self.console.print(f"epoch {self.progress.epoch}/{epochs}: {shown}, {speed}", soft_wrap=True)
            self.save()  # after the evaluation, which may draw random numbers
        return results

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The accuracy of the model, with rank 0's buffers, over the batches of all ranks: 0 to 1, on every rank."""
        return evaluate(self.model if self.whole_model is None else self.whole_model(), batches)

    def save(self) -> None:
        """Save a checkpoint, if there is a file for it.

        A checkpoint has rank 0's buffers only. So ranks also continue with rank 0's buffers, as a resumed training
        does; those of batch norm may differ after a forward in `no_sync`.
        """
        if self.checkpoint is None:
            return
        if world_size() > 1:
            broadcast(self.model.buffers(), source=0)
        epoch = self.progress.epoch
        save_checkpoint(self.checkpoint, self.model, self.optimizer, self.scaler, epoch, **self._also_saved())

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint, saved on any number of ranks."""
        load_checkpoint(path, self.model, self.optimizer, self.scaler, **self._also_saved())
        done = f"{self.progress.epoch} epochs and {self.progress.steps} steps are done"
        self.console.print(f"resumed from {path}: {done}", soft_wrap=True)

    def _train_epoch(self, title: str) -> float | None:
        """Train to the end of the epoch. Returns the mean loss over the examples of all ranks, None without any."""
        self.model.train()
        total = torch.zeros(2, dtype=torch.float64, device=self._device)  # loss times examples, examples
        with EpochBar(self.console, title, len(self.loader), self._batches_done) as bar:
            for microbatches in self._microbatches_of_steps():
                loss = accumulate_and_step(self.model, self.optimizer, microbatches, self.loss_fn, self.scaler)
                examples = sum(len(targets) for _, targets in microbatches)
                total += torch.stack([loss.detach().double() * examples, total.new_tensor(examples)])
                self._step_done(len(microbatches))
                bar.advance(len(microbatches), examples * world_size(), loss)
                if self.interruption is not None and self.interruption.on_any_rank():
                    raise Interrupted
        if world_size() > 1:
            dist.all_reduce(total)
        losses, count = total.tolist()
        return losses / count if count else None

    @property
    def _batches_done(self) -> int:
        return self.progress.examples // self._batches.examples_per_batch

    def _microbatches_of_steps(self) -> Iterator[list[Batch]]:
        batches = self._batches.remaining(self.progress)
        while microbatches := [self._on_device(batch) for batch in islice(batches, self.accumulate)]:
            yield microbatches

    def _step_done(self, microbatches: int) -> None:
        self.progress.step_done(microbatches * self._batches.examples_per_batch)
        if self.scheduler is not None:
            self.scheduler.step()
        if self.checkpoint_every is not None and self.progress.steps % self.checkpoint_every == 0:
            self.save()

    def _also_saved(self) -> dict[str, Any]:
        scheduler = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return {"progress": self.progress, **scheduler}

    def _on_device(self, batch: Batch) -> Batch:
        inputs, targets = batch
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)
