"""Checks of distributed samplers: who gets which sample."""

from collections import Counter

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.shares import about, cover, numbers, shares_in


def equal_shares(trial: CaseTrial) -> None:
    """Every rank gets as many samples as every other, as many as `len(sampler)` says.

    A rank with fewer would leave the others waiting in the collectives of a step that it does not make.
    """
    counts = [len(one) for one in shares_in(trial)]
    if len(set(counts)) > 1:
        raise Violation(
            f"{about(trial)}, the ranks get {numbers(counts)} samples; expected as many on each.",
            "Add samples from the start, again and again where there are few, until the length divides by the number "
            "of ranks; or drop the last ones.",
        )
    for rank, answer in enumerate(trial.answers):
        if int(answer["length"]) != counts[rank]:
            raise Violation(
                f"{about(trial)}, `len(sampler)` on rank {rank} is {int(answer['length'])}, but it gives "
                f"{counts[rank]} samples.",
                "`len(sampler)` is the number of this rank's samples: a DataLoader and a scheduler count steps by it.",
            )


def fewer_samples_than_ranks(trial: CaseTrial) -> None:
    """Where there are fewer samples than ranks, all ranks still get one, which may be the same one several times."""
    equal_shares(trial)


def every_sample_once(trial: CaseTrial) -> None:
    """All samples are used, each by one rank; only what is needed to even out the shares is used twice."""
    problem = cover(trial.case.length, shares_in(trial))
    if problem:
        raise Violation(
            problem, "Let rank r take the indices r, r + N, r + 2N, ... of one list, the same on all ranks."
        )


def drop_last_drops_least(trial: CaseTrial) -> None:
    """With `drop_last`, shares are equal, no sample is used twice, and fewer are left out than there are ranks."""
    dropped = "Each rank gets length // N samples: drop the rest before sharing out."
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
            dropped,
        )


def seed_shared_by_ranks(trial: CaseTrial) -> None:
    """In every epoch, all ranks shuffle alike: what they get is still disjoint, and all samples are used."""
    for epoch in (0, 1):
        problem = cover(trial.case.length, shares_in(trial, epoch))
        if problem:
            raise Violation(
                f"Without shuffling every sample is used once; with it, in epoch {epoch}, not: {problem}",
                "Ranks shuffle differently. Draw the permutation from a generator of its own, seeded with seed + epoch "
                "on every rank, never with the rank or from the global generator; then pad, then share out.",
            )


def many_samples(trial: CaseTrial) -> None:
    """Of a data set with more than 65,536 samples, all are used."""
    problem = cover(trial.case.length, shares_in(trial))
    if problem:
        raise Violation(problem, "Keep indices in Python's int or in int64: 16 bits hold 65,536 numbers.")


def drops_others_in_other_epochs(trial: CaseTrial) -> None:
    """With `drop_last` and shuffling too, as few samples are left out; those of one epoch come in another."""
    drop_last_drops_least(trial)
    every = range(trial.case.length)
    epochs = [{index for share in shares_in(trial, at) for index in share} for at in range(len(trial.case.epochs))]
    never = [index for index in every if not any(index in seen for seen in epochs)]
    if never and all(len(seen) + len(never) == len(every) for seen in epochs):
        raise Violation(
            f"{about(trial)} and drop_last=True, each of the epochs {numbers(trial.case.epochs)} leaves out the same "
            f"samples: {numbers(never)}.",
            "Shuffle first, and drop what is then last.",
        )


def shares_of_other_replicas(trial: CaseTrial) -> None:
    """`num_replicas` and `rank` decide the share, not the process group: a rank may ask for those of other replicas."""
    replicas = trial.case.replicas
    for rank, answer in enumerate(trial.answers):
        problem = cover(trial.case.length, [answer[f"share/{share}"].tolist() for share in range(replicas)])
        if problem:
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} asks for the shares of {replicas} replicas. {problem}",
                "Use the arguments `num_replicas` and `rank`, not `dist.get_world_size()` and `dist.get_rank()`.",
            )
