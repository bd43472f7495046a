"""How far a training is, counted so that it can go on from there, also on another number of ranks.

A training is always between two steps when its progress is saved. A step is one update of the parameters, after
however many microbatches; between two steps, no gradient is half accumulated.

The sampler deals the shuffled examples out in turn. So after k batches of B examples on W ranks, the first k B W
examples of the epoch are done, for any W. Progress within an epoch is therefore counted in examples. To go on, each
rank reads the epoch's batches again and drops those that are done. Reading draws random numbers, for shuffling and for
augmentation, so the order of an epoch must follow from the epoch's number alone.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from reference.training import rng_state
from reference.training.rank_zero import world_size

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass
class Progress:
    """How far a training is, between two steps.

    Attributes:
        epoch: number of epochs that are over.
        examples: number of examples of the current epoch that all ranks together have trained on. A short batch counts
            as a full one.
        steps: number of updates of the parameters, over all epochs.
    """

    epoch: int = 0
    examples: int = 0
    steps: int = 0

    def step_done(self, examples: int) -> None:
        """Count a step on this number of examples."""
        self.steps += 1
        self.examples += examples

    def epoch_done(self) -> None:
        """Count an epoch."""
        self.epoch += 1
        self.examples = 0

    def state_dict(self) -> dict[str, Any]:
        """The numbers by name, for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the numbers of a checkpoint."""
        self.__dict__.update(state_dict)


class EpochBatches:
    """This rank's batches of an epoch, in an order that follows from the epoch's number alone.

    Args:
        loader: this rank's batches; its sampler has `set_epoch`.
    """

    def __init__(self, loader: DataLoader[Batch]) -> None:
        self._loader = loader
        self._seed = None if loader.generator is None else loader.generator.initial_seed()

    @property
    def examples_per_batch(self) -> int:
        """Examples in one batch of every rank."""
        return (self._loader.batch_size or 1) * world_size()

    def remaining(self, progress: Progress) -> Iterator[Batch]:
        """The batches of the current epoch that are not done."""
        self._loader.sampler.set_epoch(progress.epoch)  # type: ignore[attr-defined]  # a DistributedSampler
        if self._seed is not None:
            self._loader.generator.manual_seed(_random_number(self._seed, progress.epoch))
        if progress.examples == 0:
            return iter(self._loader)
        states = rng_state.capture()  # restored from the checkpoint; reading the batches that are done changes them
        batches = iter(self._loader)
        deque(islice(batches, progress.examples // self.examples_per_batch), maxlen=0)
        rng_state.restore(states)
        return batches


def _random_number(seed: int, index: int) -> int:
    """The random number at this index of the sequence that begins with a seed."""
    return int(torch.randint(1 << 31, (index + 1,), generator=torch.Generator().manual_seed(seed))[-1])
