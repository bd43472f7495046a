"""Iterates over samplers as a training loop does, epoch after epoch."""

from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from conformance.exercises.desk import Desk

_AT_MOST = 1000


def sample(desk: Desk) -> None:
    """Note the indices of two epochs, of the first once more, and of another seed.

    The global generator is another one on each rank, and moves on in between, as it does in training.
    """
    seed = int(desk.given["seed"])
    torch.manual_seed(int(desk.given["own"]))
    sampler = _made(desk, seed)
    with desk.stage("`len(sampler)`"):
        desk.answer["length"] = torch.tensor(len(sampler))
    for name, epoch in (("first", 0), ("second", 1), ("first_again", 0)):
        desk.answer[name] = _epoch(desk, sampler, epoch)
    desk.answer["other_seed"] = _epoch(desk, _made(desk, seed + 1), 0)
    desk.answer["made_again"] = _epoch(desk, _made(desk, seed), 0)


def _made(desk: Desk, seed: int) -> Any:
    dataset = TensorDataset(torch.zeros(desk.case.length, 1))
    options = (desk.case.shuffle, seed, desk.case.drop_last)
    return desk.call("get_distributed_sampler", dataset, desk.world_size, dist.get_rank(), *options)


def _epoch(desk: Desk, sampler: Any, epoch: int) -> torch.Tensor:
    with desk.stage("`sampler.set_epoch`"):
        sampler.set_epoch(epoch)
    with desk.stage("iteration over the sampler"):
        return torch.tensor([int(index) for index in islice(sampler, _AT_MOST)], dtype=torch.int64)
