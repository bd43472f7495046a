"""Assertions about the shares of distributed samplers: which rank gets which sample."""

from collections import Counter

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.words import about, cover, numbers, shares_in

_PAD = (
    "Add samples from the start, again and again where there are few, until the length divides by the number of ranks; "
    "or drop the last ones."
)
_DROP = "Each rank gets length // N samples: drop the rest before sharing out."


def equal_shares(trial: CaseTrial) -> None:
    """Hold all shares to one length, and `len(sampler)` to it: ranks make as many steps, with collectives in each."""
    counts = [len(one) for one in shares_in(trial)]
    if len(set(counts)) > 1:
        raise Violation(
            f"{about(trial)}, the ranks get {numbers(counts)} samples; expected as many on each.",
            _DROP if trial.case.drop_last else _PAD,
        )
    for rank, answer in enumerate(trial.answers):
        if int(answer["length"]) != counts[rank]:
            raise Violation(
                f"{about(trial)}, `len(sampler)` on rank {rank} is {int(answer['length'])}, but it gives "
                f"{counts[rank]} samples.",
                "`len(sampler)` is the number of this rank's samples: a DataLoader and a scheduler count steps by it.",
            )


def every_sample_once(trial: CaseTrial) -> None:
    """Hold shares to equal lengths, and to covering the data set, with as many used twice as even out the shares."""
    equal_shares(trial)
    problem = cover(trial.case.length, shares_in(trial))
    if problem:
        raise Violation(
            problem, "Let rank r take the indices r, r + N, r + 2N, ... of one list, the same on all ranks."
        )


def drop_last_drops_least(trial: CaseTrial) -> None:
    """Hold shares to equal lengths, to different samples, and to all but fewer than there are ranks."""
    equal_shares(trial)
    case = trial.case
    seen = Counter(index for share in shares_in(trial) for index in share)
    twice = sorted(index for index, times in seen.items() if times > 1)
    expected = case.length // case.world_size * case.world_size
    if twice or len(seen) != expected:
        raise Violation(
            f"{about(trial)} and drop_last=True, {len(seen)} samples are used"
            + (f", sample {twice[0]} {seen[twice[0]]} times" if twice else "")
            + f"; expected {expected}, each once.",
            _DROP,
        )


def disjoint_in_every_epoch(trial: CaseTrial) -> None:
    """Hold the shares of two epochs to covering the data set."""
    for epoch in (0, 1):
        problem = cover(trial.case.length, shares_in(trial, epoch))
        if problem:
            raise Violation(
                f"Without shuffling every sample is used once; with it, in epoch {epoch}, not: {problem}",
                "Ranks shuffle differently. Draw the permutation from a generator of its own, seeded with seed + epoch "
                "on every rank, never with the rank or from the global generator; then pad, then share out.",
            )


def shares_of_other_replicas(trial: CaseTrial) -> None:
    """Hold the shares that one rank asks for to covering the data set."""
    replicas = trial.case.replicas
    for rank, answer in enumerate(trial.answers):
        problem = cover(trial.case.length, [answer[f"share/{share}"].tolist() for share in range(replicas)])
        if problem:
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} asks for the shares of {replicas} replicas. {problem}",
                "Use the arguments `num_replicas` and `rank`, not `dist.get_world_size()` and `dist.get_rank()`.",
            )
