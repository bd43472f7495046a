"""A right sampler."""

import math
from itertools import cycle, islice

import torch


class Sampler(torch.utils.data.Sampler):
    def __init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last):  # noqa: PLR0917  the contract
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def __len__(self):
        share = len(self.dataset) / self.num_replicas
        return math.floor(share) if self.drop_last else math.ceil(share)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            indices = torch.randperm(len(indices), generator=generator).tolist()
        total = len(self) * self.num_replicas
        indices = list(islice(cycle(indices), total))
        return iter(indices[self.rank :: self.num_replicas])


def get_distributed_sampler(dataset, num_replicas, rank, shuffle, seed, drop_last):  # noqa: PLR0917  the contract
    return Sampler(dataset, num_replicas, rank, shuffle, seed, drop_last)
