"""Checks of distributed samplers: who gets which sample, in which epoch."""

import math
from collections import Counter

from conformance.checks.check import CaseTrial, Violation


def equal_shares(trial: CaseTrial) -> None:
    """Every rank gets as many samples as every other, as many as `len(sampler)` says.

    A rank with fewer would leave the others waiting in the collectives of a step that it does not make.
    """
    counts = [len(one) for one in _shares(trial)]
    if len(set(counts)) > 1:
        raise Violation(
            f"{_set(trial)}, the ranks get {_listed(counts)} samples; expected as many on each.",
            "Add samples from the start until the length divides by the number of ranks, or drop the last ones.",
        )
    for rank, answer in enumerate(trial.answers):
        if int(answer["length"]) != counts[rank]:
            raise Violation(
                f"{_set(trial)}, `len(sampler)` on rank {rank} is {int(answer['length'])}, but it gives "
                f"{counts[rank]} samples.",
                "`len(sampler)` is the number of this rank's samples: a DataLoader and a scheduler count steps by it.",
            )


def every_sample_once(trial: CaseTrial) -> None:
    """All samples are used, each by one rank; only what is needed to even out the shares is used twice."""
    problem = _cover(trial, "first")
    if problem:
        raise Violation(
            problem, "Let rank r take the indices r, r + N, r + 2N, ... of one list, the same on all ranks."
        )


def drop_last_drops_least(trial: CaseTrial) -> None:
    """With `drop_last`, nobody gets a sample twice, and fewer samples are left out than there are ranks."""
    case = trial.case
    seen = Counter(index for share in _shares(trial) for index in share)
    twice = sorted(index for index, times in seen.items() if times > 1)
    expected = case.length // case.world_size * case.world_size
    if twice or len(seen) != expected:
        raise Violation(
            f"{_set(trial)} and drop_last=True, {len(seen)} samples are used"
            + (f", sample {twice[0]} {seen[twice[0]]} times" if twice else "")
            + f"; expected {expected}, each once.",
            "Each rank gets length // N samples: drop the rest before sharing out.",
        )


def seed_shared_by_ranks(trial: CaseTrial) -> None:
    """In every epoch, all ranks shuffle alike: what they get is still disjoint, and all samples are used."""
    for name, epoch in (("first", 0), ("second", 1)):
        problem = _cover(trial, name)
        if problem:
            raise Violation(
                f"Without shuffling every sample is used once; with it, in epoch {epoch}, not: {problem}",
                "Ranks shuffle differently. Draw the permutation from a generator of its own, seeded with seed + epoch "
                "on every rank, never with the rank or from the global generator; then pad, then share out.",
            )


def shuffles(trial: CaseTrial) -> None:
    """With `shuffle=True`, the samples come in another order than without."""
    for rank, share in enumerate(_shares(trial)):
        if share == sorted(share):
            raise Violation(f"{_set(trial)} and shuffle=True, rank {rank} gets its samples in order: {_start(share)}.")


def set_epoch_reshuffles(trial: CaseTrial) -> None:
    """After `set_epoch`, the order is another one."""
    for rank, (first, second) in enumerate(zip(_shares(trial), _shares(trial, "second"), strict=True)):
        if first == second:
            raise Violation(
                f"{_set(trial)}, rank {rank} gets the same samples in the same order in epochs 0 and 1: "
                f"{_start(first)}.",
                "Seed the generator of each iteration with seed + epoch, where `set_epoch(epoch)` keeps the epoch.",
            )


def epochs_repeat(trial: CaseTrial) -> None:
    """The same seed and epoch give the same order again, so that a training run can be repeated and resumed."""
    for name, words in (("first_again", "when it is set a second time"), ("made_again", "from a new sampler")):
        for rank, (first, again) in enumerate(zip(_shares(trial), _shares(trial, name), strict=True)):
            if first != again:
                raise Violation(
                    f"{_set(trial)}, epoch 0 is another one on rank {rank} {words}: first {_start(first)}, then "
                    f"{_start(again)}.",
                    "Make the generator anew at the start of each iteration, from seed and epoch alone.",
                )


def seed_decides(trial: CaseTrial) -> None:
    """Another seed gives another order."""
    for rank, (first, other) in enumerate(zip(_shares(trial), _shares(trial, "other_seed"), strict=True)):
        if first == other:
            raise Violation(f"{_set(trial)}, two different seeds give rank {rank} the same order: {_start(first)}.")


def no_shuffling_unless_asked(trial: CaseTrial) -> None:
    """With `shuffle=False`, every epoch has the same order."""
    for rank, (first, second) in enumerate(zip(_shares(trial), _shares(trial, "second"), strict=True)):
        if first != second:
            raise Violation(
                f"{_set(trial)} and shuffle=False, rank {rank} gets {_start(first)} in epoch 0 and {_start(second)} in "
                "epoch 1; expected the same."
            )


def _cover(trial: CaseTrial, name: str) -> str:
    """Return what is wrong with the samples of an epoch taken together, or nothing."""
    case = trial.case
    shares = _shares(trial, name)
    seen = Counter(index for share in shares for index in share)
    strange = sorted(index for index in seen if not 0 <= index < case.length)
    if strange:
        return f"{_set(trial)}, index {strange[0]} is none of the data set."
    absent = [index for index in range(case.length) if index not in seen]
    if absent:
        doubled = [index for index, times in seen.items() if times > 1]
        more = f", and sample {doubled[0]} is used {seen[doubled[0]]} times" if doubled else ""
        return f"{_set(trial)}, {len(absent)} samples are never used, sample {absent[0]} among them{more}."
    expected = math.ceil(case.length / case.world_size) * case.world_size
    if seen.total() != expected:
        return (
            f"{_set(trial)}, the ranks get {seen.total()} samples in all; expected {expected}, so that "
            f"{expected - case.length} are used a second time."
        )
    return ""


def _shares(trial: CaseTrial, name: str = "first") -> list[list[int]]:
    return [answer[name].tolist() for answer in trial.answers]


def _set(trial: CaseTrial) -> str:
    return f"With {trial.case.length} samples on {trial.case.world_size} ranks"


def _start(share: list[int]) -> str:
    return _listed(share[:6]) + (", ..." if len(share) > 6 else "")  # noqa: PLR2004  the same six


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
