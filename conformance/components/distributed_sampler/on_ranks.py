"""Iterates over samplers as a training loop does, one epoch after the other."""

from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from conformance.ranks.boundary import stage
from conformance.ranks.context import Context
from conformance.ranks.environment import another_run

_TOO_MANY = 1000


def sample(context: Context) -> None:
    """Answer with the indices of the case's epochs, of epoch 0 with another seed, and of other replicas.

    A sampler that is made anew gives the last epoch once more. The global generators are seeded differently on each
    rank, as in a training.
    """
    seed = int(context.given["seed"])
    own = (context.world_size, dist.get_rank())
    with context.watching_global_generators(int(context.given["own"])):
        sampler = _made(context, seed, *own)
        with stage("`len(sampler)`"):
            context.answer["length"] = torch.tensor(len(sampler))
        if context.case.left:
            with stage("iteration over the sampler, up to its first sample"):
                sampler.set_epoch(context.case.epochs[0])
                next(iter(sampler), None)
        for at, epoch in enumerate(context.case.epochs):
            context.answer[f"epoch/{at}"] = _epoch(context, sampler, epoch)
    context.answer["other_seed"] = _epoch(context, _made(context, seed + 1, *own), 0)
    context.answer["made_again"] = _epoch(context, _made(context, seed, *own), context.case.last_epoch)
    if context.case.later:
        with another_run():
            context.answer["made_later"] = _epoch(context, _made(context, seed, *own), 0)
    for share in range(context.case.replicas):
        context.answer[f"share/{share}"] = _epoch(context, _made(context, seed, context.case.replicas, share), 0)


def _made(context: Context, seed: int, replicas: int, rank: int) -> Any:
    dataset = TensorDataset(torch.zeros(context.case.length, 1))
    options = (context.case.shuffle, seed, context.case.drop_last)
    return context.call("get_distributed_sampler", dataset, replicas, rank, *options)


def _epoch(context: Context, sampler: Any, epoch: int | None) -> torch.Tensor:
    if epoch is not None:
        with stage("`sampler.set_epoch`"):
            sampler.set_epoch(epoch)
    with stage("iteration over the sampler"):
        indices = [int(index) for index in islice(sampler, context.case.length + _TOO_MANY)]
        return torch.tensor(indices, dtype=torch.int64)
