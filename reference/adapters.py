"""The reference implementations as a submission: the functions that `conformance` calls, by their official names."""

from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.communication import overhead
from reference.data import seeds
from reference.data.samplers import DistributedSampler
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.flat import FlatDDP
from reference.ddp.naive import NaiveDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.fsdp.fsdp import FSDP
from reference.training import accumulation, checkpoint, evaluation, sync_batchnorm
from reference.training.engine import Engine
from reference.zero1.sharded_optimizer import ShardedOptimizer


def get_naive_ddp(module: nn.Module) -> NaiveDDP:
    """A module whose gradients are averaged one by one after backward."""
    return NaiveDDP(module)


def naive_ddp_on_after_backward(ddp_model: NaiveDDP, optimizer: Optimizer) -> None:  # noqa: ARG001  # the contract
    """Average the gradients."""
    ddp_model.finish_gradient_synchronization()


def get_flat_ddp(module: nn.Module) -> FlatDDP:
    """A module whose gradients are averaged in one all-reduce after backward."""
    return FlatDDP(module)


def flat_ddp_on_after_backward(ddp_model: FlatDDP, optimizer: Optimizer) -> None:  # noqa: ARG001  # the contract
    """Average the gradients."""
    ddp_model.finish_gradient_synchronization()


def get_ddp_individual_parameters(module: nn.Module) -> OverlappedDDP:
    """A module whose gradients are averaged one by one during backward."""
    return OverlappedDDP(module)


def ddp_individual_parameters_on_after_backward(
    ddp_model: OverlappedDDP,
    optimizer: Optimizer,  # noqa: ARG001  # the contract
) -> None:
    """Wait for the averaged gradients."""
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float | None) -> BucketedDDP:
    """A module whose gradients are averaged in buckets during backward."""
    return BucketedDDP(module, bucket_size_mb)


def ddp_bucketed_on_after_backward(ddp_model: BucketedDDP, optimizer: Optimizer) -> None:  # noqa: ARG001  # the contract
    """Wait for the averaged gradients."""
    ddp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model: BucketedDDP, optimizer: Optimizer) -> None:
    """Do nothing: the first gradient of a backward begins an exchange."""


def get_ddp(module: nn.Module) -> OverlappedDDP:
    """A module whose gradients are averaged one by one during backward.

    Not in buckets: a small model fits into one bucket, whose all-reduce would not overlap with backward.
    """
    return OverlappedDDP(module)


def ddp_on_after_backward(ddp_model: OverlappedDDP, optimizer: Optimizer) -> None:  # noqa: ARG001  # the contract
    """Wait for the averaged gradients."""
    ddp_model.finish_gradient_synchronization()


def get_sharded_optimizer(params: Iterable[Tensor], optimizer_cls: type[Optimizer], **kwargs: Any) -> ShardedOptimizer:
    """An optimizer whose state is sharded over all ranks."""
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> FSDP:
    """A module whose parameters, gradients and optimizer state are sharded over all ranks."""
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: FSDP, optimizer: Optimizer) -> None:  # noqa: ARG001  # the contract
    """Average the gradients of parameters that are not sharded; the others are averaged when backward is over."""
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model: FSDP) -> dict[str, Tensor]:
    """Every whole parameter, by its name in the bare module."""
    return fsdp_model.gather_full_params()


def get_engine(module: nn.Module, optimizer_cls: type[Optimizer], **kwargs: Any) -> Engine:
    """An engine with averaged gradients and a sharded optimizer."""
    return Engine(module, optimizer_cls, **kwargs)


def get_distributed_sampler(  # noqa: PLR0917  # the contract
    dataset: Sized,
    num_replicas: int,
    rank: int,
    shuffle: bool,  # noqa: FBT001  # the contract
    seed: int,
    drop_last: bool,  # noqa: FBT001  # the contract
) -> DistributedSampler:
    """The indices of one rank for training."""
    return DistributedSampler(dataset, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)


convert_sync_batchnorm = sync_batchnorm.convert_sync_batchnorm
accumulate_and_step = accumulation.accumulate_and_step
get_ddp_generator = seeds.ddp_generator
evaluate = evaluation.evaluate
save_checkpoint = checkpoint.save_checkpoint
load_checkpoint = checkpoint.load_checkpoint
ddp_overhead = overhead.ddp_overhead
optimal_bucket_size = overhead.optimal_bucket_size
