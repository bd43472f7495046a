"""Iterates over samplers as a training loop does, one epoch after the other."""

from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from conformance.ranks.boundary import stage
from conformance.ranks.context import Desk
from conformance.ranks.environment import another_run

_TOO_MANY = 1000


def sample(desk: Desk) -> None:
    """Answer with the indices of the case's epochs, of epoch 0 with another seed, and of other replicas.

    A sampler that is made anew gives the last epoch once more. The global generators are seeded differently on each
    rank, as in a training.
    """
    seed = int(desk.given["seed"])
    own = (desk.world_size, dist.get_rank())
    with desk.watching_global_generators(int(desk.given["own"])):
        sampler = _made(desk, seed, *own)
        with stage("`len(sampler)`"):
            desk.answer["length"] = torch.tensor(len(sampler))
        if desk.case.left:
            _leave(desk, sampler)
        for at, epoch in enumerate(desk.case.epochs):
            desk.answer[f"epoch/{at}"] = _epoch(desk, sampler, epoch)
    desk.answer["other_seed"] = _epoch(desk, _made(desk, seed + 1, *own), 0)
    desk.answer["made_again"] = _epoch(desk, _made(desk, seed, *own), desk.case.last_epoch)
    if desk.case.later:
        with another_run():
            desk.answer["made_later"] = _epoch(desk, _made(desk, seed, *own), 0)
    for share in range(desk.case.replicas):
        desk.answer[f"share/{share}"] = _epoch(desk, _made(desk, seed, desk.case.replicas, share), 0)


def _made(desk: Desk, seed: int, replicas: int, rank: int) -> Any:
    dataset = TensorDataset(torch.zeros(desk.case.length, 1))
    options = (desk.case.shuffle, seed, desk.case.drop_last)
    return desk.call("get_distributed_sampler", dataset, replicas, rank, *options)


def _leave(desk: Desk, sampler: Any) -> None:
    with stage("iteration over the sampler, up to its first sample"):
        sampler.set_epoch(desk.case.epochs[0])
        next(iter(sampler), None)


def _epoch(desk: Desk, sampler: Any, epoch: int | None) -> torch.Tensor:
    if epoch is not None:
        with stage("`sampler.set_epoch`"):
            sampler.set_epoch(epoch)
    with stage("iteration over the sampler"):
        return torch.tensor([int(index) for index in islice(sampler, desk.case.length + _TOO_MANY)], dtype=torch.int64)
