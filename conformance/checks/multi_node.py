"""Checks where ranks seem to be on two machines, each with its first rank: places there are taken for ranks."""

from conformance.checks.check import CaseTrial, Trial, advising
from conformance.checks.training import gradients_averaged, training_equals_one_process
from conformance.components.checkpoint.checks import one_rank_writes
from conformance.components.fsdp.checks import sharded_training_equals_one_process
from conformance.components.loader_generator.checks import differs_by_rank

_ADVICE = (
    "Ranks seem to be on two machines here: `LOCAL_RANK` is a rank's place on its own, and `LOCAL_WORLD_SIZE` counts "
    "the ranks there. Take `dist.get_rank()` and `dist.get_world_size()`."
)


def wraps_on_two_machines(trial: Trial) -> None:
    """On two machines, too, gradients are averaged over all ranks, and parameters are those of rank 0."""
    with advising(_ADVICE):
        gradients_averaged(trial)


def steps_on_two_machines(trial: Trial) -> None:
    """On two machines, too, each parameter has one owner among all ranks."""
    with advising(_ADVICE):
        training_equals_one_process(trial)


def shards_on_two_machines(trial: CaseTrial) -> None:
    """On two machines, too, each rank has the shard of its rank."""
    with advising(_ADVICE):
        sharded_training_equals_one_process(trial)


def draws_on_two_machines(trial: CaseTrial) -> None:
    """On two machines, too, every rank has a stream of its own."""
    with advising(_ADVICE):
        differs_by_rank(trial)


def writes_on_two_machines(trial: CaseTrial) -> None:
    """On two machines, too, rank 0 writes the file, and nobody else does."""
    with advising(_ADVICE):
        one_rank_writes(trial)
