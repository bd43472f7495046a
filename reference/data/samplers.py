"""Samplers decide which samples of a dataset each of W ranks reads. Ranks need no communication for that.

**Training.** Every rank draws the same permutation of the dataset, from the seed and the epoch alone. Rank r takes the
indices at r, r + W, r + 2 W and so on. All ranks must take the same number of steps, because every step is a
collective. So the length of the permutation is made a multiple of W: by repeating indices from its beginning
(`drop_last=False`), or by leaving out indices at its end (`drop_last=True`).

**Evaluation.** A sample that is repeated would be counted twice, and one that is left out would not be counted. So each
index goes to exactly one rank. Then ranks may differ by one sample, and by one batch, so they must not communicate
between the first batch and the last.

Source: `torch.utils.data.distributed.DistributedSampler`, which draws the same permutations.
"""

import math
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class DistributedSampler(Sampler[int]):
    """The indices of one rank for training: the same number on every rank.

    Call `set_epoch` on every rank before each epoch. Without it, all epochs have the same order.

    Args:
        dataset: any object with a length, the same on every rank.
        num_replicas: number of ranks W; by default the world size.
        rank: this rank; by default this process's rank in the process group.
        shuffle: permute the indices; otherwise they are taken in order.
        seed: of the permutation, the same on every rank.
        drop_last: leave out up to W - 1 indices; otherwise up to W - 1 indices are repeated.

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
        self.num_replicas, self.rank = _checked_ranks(num_replicas, rank)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def __len__(self) -> int:
        """The number of indices of each rank."""
        share = len(self.dataset) / self.num_replicas
        return math.floor(share) if self.drop_last else math.ceil(share)

    def __iter__(self) -> Iterator[int]:
        """This rank's indices of the epoch."""
        indices = self._permutation()
        total = len(self) * self.num_replicas
        if indices:
            indices *= math.ceil(total / len(indices))  # more than twice if the dataset is smaller than W
        return iter(indices[self.rank : total : self.num_replicas])

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of an epoch. Pass the same number on every rank."""
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
        dataset: any object with a length, the same on every rank.
        num_replicas: number of ranks; by default the world size.
        rank: this rank; by default this process's rank in the process group.

    Raises:
        ValueError: `rank` is not below `num_replicas`.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None) -> None:
        self.dataset = dataset
        self.num_replicas, self.rank = _checked_ranks(num_replicas, rank)

    def __len__(self) -> int:
        """The number of indices of this rank. The first ranks have one more if W does not divide the dataset."""
        return len(self._indices())

    def __iter__(self) -> Iterator[int]:
        """This rank's indices."""
        return iter(self._indices())

    def _indices(self) -> range:
        return range(self.rank, len(self.dataset), self.num_replicas)


def _checked_ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
    rank = dist.get_rank() if rank is None else rank
    if not 0 <= rank < num_replicas:
        raise ValueError(
            f"rank {rank} of {num_replicas} replicas: ranks are 0 to {num_replicas - 1}. Pass both `num_replicas` and "
            "`rank`, or neither of them to use those of the process group."
        )
    return num_replicas, rank
