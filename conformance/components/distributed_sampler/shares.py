"""Assertions about the shares of distributed samplers: which rank gets which sample."""

import math
from collections import Counter
from collections.abc import Sequence

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial

Shares = list[list[int]]  # by rank
_PAD = (
    "Add samples from the start, again and again where there are few, until the length divides by the number of ranks; "
    "or drop the last ones."
)
_DROP = "Each rank gets length // N samples: drop the rest before sharing out."
_ALIKE = (
    "Ranks shuffle differently. Draw the permutation from a generator of its own, seeded with seed + epoch on every "
    "rank, never with the rank or from the global generator; then pad, then share out."
)
_SHOWN = 6


def equal_shares(trial: CaseTrial) -> None:
    """Hold all shares to one length, and `len(sampler)` to it: ranks make as many steps, with collectives in each."""
    counts = [len(one) for one in shares_in(trial)]
    if len(set(counts)) > 1:
        raise Violation(
            f"{about(trial)}, the ranks get {listed(counts)} samples; expected as many on each.",
            _DROP if trial.case.drop_last else _PAD,
        )
    for rank, answer in enumerate(trial.answers):
        if answer["length"] != counts[rank]:
            raise Violation(
                f"{about(trial)}, `len(sampler)` on rank {rank} is {answer['length']}, but it gives {counts[rank]} "
                "samples.",
                "`len(sampler)` is the number of this rank's samples: a DataLoader and a scheduler count steps by it.",
            )


def every_sample_once(trial: CaseTrial) -> None:
    """Hold shares to equal lengths, and to covering the data set, with as many used twice as even out the shares."""
    equal_shares(trial)
    if problem := _uncovered(trial.case.length, shares_in(trial)):
        raise Violation(
            problem,
            _ALIKE
            if _shuffled_apart(trial)
            else "Let rank r take the indices r, r + N, r + 2N, ... of one list, the same on all ranks.",
        )


def drop_last_drops_least(trial: CaseTrial) -> None:
    """Hold shares to equal lengths, to different samples, and to all but fewer than there are ranks."""
    equal_shares(trial)
    case, seen = trial.case, Counter(index for share in shares_in(trial) for index in share)
    twice = sorted(index for index, times in seen.items() if times > 1)
    expected = case.length // case.world_size * case.world_size
    if twice or len(seen) != expected:
        raise Violation(
            f"{about(trial)} and drop_last=True, {len(seen)} samples are used"
            + (f", sample {twice[0]} {seen[twice[0]]} times" if twice else "")
            + f"; expected {expected}, each once.",
            _ALIKE if _shuffled_apart(trial) else _DROP,
        )


def disjoint_in_every_epoch(trial: CaseTrial) -> None:
    """Hold the shares of two epochs to covering the data set."""
    for epoch in (0, 1):
        if problem := _uncovered(trial.case.length, shares_in(trial, epoch)):
            raise Violation(
                f"Without shuffling every sample is used once; with it, in epoch {epoch}, not: {problem}",
                _ALIKE,
            )


def shares_of_other_replicas(trial: CaseTrial) -> None:
    """Hold the shares that one rank asks for to covering the data set."""
    replicas = trial.case.replicas
    for rank, answer in enumerate(trial.answers):
        shares = [answer[f"share/{share}"].tolist() for share in range(replicas)]
        if problem := _uncovered(trial.case.length, shares):
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} asks for the shares of {replicas} replicas. {problem}",
                "Use the arguments `num_replicas` and `rank`, not `dist.get_world_size()` and `dist.get_rank()`.",
            )


def _shuffled_apart(trial: CaseTrial) -> bool:
    """Whether samples are shuffled, and each rank gets different ones, but some that another rank gets too."""
    shares = shares_in(trial)
    own = all(len(set(share)) == len(share) for share in shares)
    return trial.case.shuffle and own and len(set().union(*shares)) < sum(map(len, shares))


def _uncovered(length: int, shares: Shares) -> str:
    """Return what is wrong with the samples of an epoch taken together, or nothing."""
    ranks, where = len(shares), _said(length, len(shares))
    seen = Counter(index for share in shares for index in share)
    strange = sorted(index for index in seen if not 0 <= index < length)
    if strange:
        return f"{where}, index {strange[0]} is none of the data set."
    absent = [index for index in range(length) if index not in seen]
    if absent:
        doubled = [index for index, times in seen.items() if times > 1]
        more = f", and sample {doubled[0]} is used {seen[doubled[0]]} times" if doubled else ""
        return f"{where}, {len(absent)} samples are never used, sample {absent[0]} among them{more}."
    expected = math.ceil(length / ranks) * ranks
    if seen.total() != expected:
        return (
            f"{where}, the ranks get {seen.total()} samples in all; expected {expected}, so that "
            f"{expected - length} are used a second time."
        )
    return ""


def shares_in(trial: CaseTrial, at: int = 0) -> Shares:
    """Return what each rank got in one of the epochs."""
    return noted(trial, f"epoch/{at}")


def noted(trial: CaseTrial, name: str) -> Shares:
    """Return the indices that each rank has noted under a name."""
    return [answer[name].tolist() for answer in trial.answers]


def about(trial: CaseTrial) -> str:
    """Return how many samples there are on how many ranks in a trial, as a sentence begins."""
    return _said(trial.case.length, trial.case.world_size)


def _said(length: int, ranks: int) -> str:
    return f"With {length} samples on {ranks} ranks"


def start(share: Sequence[int]) -> str:
    """Return the first numbers of a share."""
    return listed(share[:_SHOWN]) + (", ..." if len(share) > _SHOWN else "")


def listed(numbers: Sequence[int]) -> str:
    """Return numbers, one after the other."""
    return ", ".join(map(str, numbers)) or "none"
