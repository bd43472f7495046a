"""Which samples of a dataset each rank sees: alike on all ranks, without a word between them.

Training: every rank draws the same permutation, from the seed and the epoch alone, and takes every W-th index of it,
beginning at its rank. Ranks must do equally many steps, since every step is a collective; so the permutation is made
to divide by W, by repeating indices from its beginning (`drop_last=False`) or by leaving out those at its end.

Evaluation: a repeated sample would be counted twice and one left out not at all, so every index goes to exactly one
rank. Ranks may then differ by one sample, and by one batch: nothing in the loop over batches may be a collective.

Source: `torch.utils.data.distributed.DistributedSampler`, whose permutations these are.
"""

import math
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class DistributedSampler(Sampler[int]):
    """The indices of one rank for training: equally many on every rank.

    Call `set_epoch` on every rank before each epoch; without it all epochs have the same order.

    Args:
        dataset: anything with a length, the same on every rank.
        num_replicas: number of ranks; by default the world size.
        rank: this rank; by default that of the process group.
        shuffle: whether to permute; else the indices are taken in order.
        seed: the same on every rank.
        drop_last: leave out up to W - 1 indices rather than repeat as many.

    Raises:
        ValueError: `rank` is not below `num_replicas`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.dataset = dataset
        self.num_replicas, self.rank = _place(num_replicas, rank)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def __len__(self) -> int:
        """How many indices each rank gets."""
        share = len(self.dataset) / self.num_replicas
        return math.floor(share) if self.drop_last else math.ceil(share)

    def __iter__(self) -> Iterator[int]:
        """This rank's indices of the epoch."""
        indices = self._permutation()
        total = len(self) * self.num_replicas
        if indices:
            indices *= math.ceil(total / len(indices))  # a dataset smaller than W is repeated more than once
        return iter(indices[self.rank : total : self.num_replicas])

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of an epoch, the same number on every rank."""
        self.epoch = epoch

    def _permutation(self) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()


class EvaluationSampler(Sampler[int]):
    """The indices of one rank for evaluation: every index on exactly one rank, in order.

    Args:
        dataset: anything with a length, the same on every rank.
        num_replicas: number of ranks; by default the world size.
        rank: this rank; by default that of the process group.

    Raises:
        ValueError: `rank` is not below `num_replicas`.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None) -> None:
        self.dataset = dataset
        self.num_replicas, self.rank = _place(num_replicas, rank)

    def __len__(self) -> int:
        """How many indices this rank gets: the first ranks get one more than the others if W does not divide."""
        return len(self._indices())

    def __iter__(self) -> Iterator[int]:
        """This rank's indices."""
        return iter(self._indices())

    def _indices(self) -> range:
        return range(self.rank, len(self.dataset), self.num_replicas)


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    size = dist.get_world_size() if num_replicas is None else num_replicas
    place = dist.get_rank() if rank is None else rank
    if not 0 <= place < size:
        raise ValueError(
            f"rank {place} has no share among {size} replicas: ranks are counted from 0 to {size - 1}. Give both "
            "`num_replicas` and `rank`, or neither to take them from the process group."
        )
    return size, place
