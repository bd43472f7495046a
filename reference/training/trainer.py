"""The loop around a data-parallel model: epochs of steps, checkpoints between steps, words from rank 0 only.

Every rank runs the same loop on its own share of the data. What keeps the ranks together is that all of them take the
same number of steps (the sampler pads or drops), shuffle alike (`set_epoch`), and save and evaluate at the same places.
What keeps a resumed training on the course of an uninterrupted one is that everything is counted in whole steps: a step
is one update of the parameters, however many microbatches were accumulated for it, and between two steps there is
nothing half done that a checkpoint would have to keep.

Source: PyTorch's documentation of `torch.utils.data.distributed.DistributedSampler` (set_epoch); Goyal et al.,
"Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 3 (what a step is to the learning rate).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from reference.collectives import broadcast
from reference.training import rng_state
from reference.training.accumulation import accumulate_and_step
from reference.training.checkpoint import load_checkpoint, save_checkpoint
from reference.training.evaluation import evaluate
from reference.training.progress import Place
from reference.training.rank_zero import rank, world_size

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class EpochResult:
    """What came of an epoch, the same on every rank.

    Attributes:
        epoch: number of the epoch, from 1.
        loss: mean over the examples of all ranks that were trained on since the epoch was begun, or resumed.
        accuracy: on the evaluation data after the epoch, 0 to 1; None without such data.
    """

    epoch: int
    loss: float
    accuracy: float | None


@dataclass
class Trainer:
    """Trains a wrapped model, on every rank alike. Make and use it on every rank.

    Attributes:
        model: wrapped, with `no_sync` and `finish_gradient_synchronization`.
        optimizer: of its parameters, sharded or not.
        loss_fn: from outputs and targets to the mean loss.
        loader: this rank's batches of (inputs, targets), as many as every rank has; its sampler has `set_epoch`.
        accumulate: microbatches (batches of the loader) in a step; at the end of an epoch there may be fewer.
        scaler: a GradScaler that all ranks keep alike.
        scheduler: of the learning rate; it moves with every step.
        checkpoint: file to save to after every epoch.
        checkpoint_every: save after every so many steps, too.
        console: where to report; by default rank 0's terminal, and nowhere on the others.
        place: where the training stands.
        whole_model: gives what to evaluate if `model` communicates in forward, as FSDP does: ranks may have different
            numbers of evaluation batches. Called on every rank.
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
    place: Place = field(default_factory=Place)
    whole_model: Callable[[], nn.Module] | None = None

    def __post_init__(self) -> None:
        self._device = next(self.model.parameters()).device
        generator = self.loader.generator
        self._loader_seed = None if generator is None else generator.initial_seed()

    def train(self, epochs: int, evaluation: Iterable[Batch] | None = None) -> list[EpochResult]:
        """Train until so many epochs are over, those before a checkpoint included; what came of those that ran here.

        Args:
            epochs: number of epochs in all.
            evaluation: this rank's batches of the evaluation data, for the accuracy after each epoch.
        """
        results = []
        while self.place.epoch < epochs:
            begun, before = time.perf_counter(), self.place.examples
            loss = self._train_epoch(f"epoch {self.place.epoch + 1}/{epochs}")
            seconds, examples = time.perf_counter() - begun, self.place.examples - before
            self.place.begin_next_epoch()
            accuracy = None if evaluation is None else self.evaluate(evaluation)
            results.append(EpochResult(self.place.epoch, loss, accuracy))
            shown = "" if accuracy is None else f", accuracy {accuracy:.1%}"
            speed = f"{examples / seconds:.0f} examples/s on {world_size()} ranks"
            self.console.print(f"epoch {self.place.epoch}/{epochs}: loss {loss:.4f}{shown}, {speed}", soft_wrap=True)
            self.save()  # after the evaluation: a resumed training finds the random generators as that left them
        return results

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The accuracy of rank 0's model over the batches of all ranks, 0 to 1, on every rank."""
        model = self.model if self.whole_model is None else self.whole_model()
        _share_buffers(model)
        return evaluate(model, batches)

    def save(self) -> None:
        """Save a checkpoint, if there is a file for it."""
        if self.checkpoint is not None:
            _share_buffers(self.model)  # what the others have been counting by themselves is not saved
            save_checkpoint(
                self.checkpoint, self.model, self.optimizer, self.scaler, self.place.epoch, **self._also_saved()
            )

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, saved on any number of ranks."""
        load_checkpoint(path, self.model, self.optimizer, self.scaler, **self._also_saved())
        done = f"{self.place.epoch} epochs and {self.place.steps} steps are done"
        self.console.print(f"resumed from {path}: {done}", soft_wrap=True)

    def _train_epoch(self, title: str) -> float:
        """Train to the end of the epoch; the mean loss over the examples of all ranks."""
        self.model.train()
        total = torch.zeros(2, dtype=torch.float64, device=self._device)  # loss times examples, examples
        with Progress(console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            bar = progress.add_task(title, total=len(self.loader), completed=self.place.examples // self._per_batch)
            for microbatches in self._microbatches_of_steps():
                loss = accumulate_and_step(self.model, self.optimizer, microbatches, self.loss_fn, self.scaler)
                examples = sum(len(targets) for _, targets in microbatches)
                total += torch.stack([loss.detach().double() * examples, total.new_tensor(examples)])
                self._step_is_over(len(microbatches))
                progress.advance(bar, len(microbatches))
        if world_size() > 1:
            dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def _step_is_over(self, microbatches: int) -> None:
        self.place.advance(microbatches * self._per_batch)
        if self.scheduler is not None:
            self.scheduler.step()
        if self.checkpoint_every is not None and self.place.steps % self.checkpoint_every == 0:
            self.save()

    def _microbatches_of_steps(self) -> Iterator[list[Batch]]:
        batches = self._rest_of_epoch()
        while microbatches := [self._on_device(batch) for batch in islice(batches, self.accumulate)]:
            yield microbatches

    def _rest_of_epoch(self) -> Iterator[Batch]:
        """The batches of the current epoch that have not been trained on."""
        self.loader.sampler.set_epoch(self.place.epoch)  # type: ignore[attr-defined]  # a DistributedSampler
        if self._loader_seed is not None:  # from the epoch's number alone: an epoch can be begun again
            self.loader.generator.manual_seed(_draw(self._loader_seed, self.place.epoch))
        if self.place.examples == 0:
            return iter(self.loader)
        states = rng_state.capture()  # what the checkpoint has restored; reading draws from it once more
        batches = iter(self.loader)
        deque(islice(batches, self.place.examples // self._per_batch), maxlen=0)
        rng_state.restore(states)
        return batches

    @property
    def _per_batch(self) -> int:
        """Examples in a batch of every rank."""
        return (self.loader.batch_size or 1) * world_size()

    def _also_saved(self) -> dict[str, Any]:
        return {"place": self.place} if self.scheduler is None else {"place": self.place, "scheduler": self.scheduler}

    def _on_device(self, batch: Batch) -> Batch:
        inputs, targets = batch
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)


def _share_buffers(model: nn.Module) -> None:
    """Make buffers (batch norm's statistics) rank 0's, as the next synchronized forward would."""
    if world_size() > 1:
        broadcast(model.buffers(), source=0)


def _draw(seed: int, number: int) -> int:
    """The random number of this place in the sequence that begins with a seed."""
    return int(torch.randint(1 << 31, (number + 1,), generator=torch.Generator().manual_seed(seed))[-1])
