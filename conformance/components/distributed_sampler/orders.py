"""Assertions about the order of samples: when it must be the same, and when another."""

from itertools import combinations, pairwise

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.shares import drop_last_drops_least
from conformance.components.distributed_sampler.words import about, noted, numbers, shares_by_rank, shares_in, start

_MOSTLY = 0.8


def shuffles(trial: CaseTrial) -> None:
    """Hold shares that are shuffled to being unsorted."""
    for rank, share in enumerate(shares_in(trial)):
        if share == sorted(share):
            raise Violation(f"{about(trial)} and shuffle=True, rank {rank} gets its samples in order: {start(share)}.")


def set_epoch_reshuffles(trial: CaseTrial) -> None:
    """Hold the orders of different epochs to being different."""
    for rank, orders in enumerate(shares_by_rank(trial)):
        for (one, first), (other, second) in combinations(zip(trial.case.epochs, orders, strict=True), 2):
            if first == second:
                raise Violation(
                    f"{about(trial)}, rank {rank} gets the same samples in the same order in epochs {one} and {other}: "
                    f"{start(first)}.",
                    "Seed the generator of each iteration with seed + epoch, where `set_epoch(epoch)` keeps the epoch.",
                )


def reproducible(trial: CaseTrial) -> None:
    """Hold an epoch that is set again, or on a new sampler, to the same order."""
    last, epochs = trial.case.last_epoch, len(trial.case.epochs)
    set_again, from_another = (0, shares_in(trial, 2)), (last, noted(trial, "made_again"))
    for (epoch, shares), words in ((set_again, "when it is set a second time"), (from_another, "from a new sampler")):
        before = shares_in(trial, 0 if epoch == 0 else epochs - 1)
        for rank, (first, again) in enumerate(zip(before, shares, strict=True)):
            if first != again:
                raise Violation(
                    f"{about(trial)}, epoch {epoch} is another one on rank {rank} {words}: first {start(first)}, then "
                    f"{start(again)}.",
                    "Make the generator anew at the start of each iteration, from seed and epoch alone.",
                )


def seed_decides(trial: CaseTrial) -> None:
    """Hold the orders of two seeds to being different."""
    for rank, (first, other) in enumerate(zip(shares_in(trial), noted(trial, "other_seed"), strict=True)):
        if first == other:
            raise Violation(f"{about(trial)}, two different seeds give rank {rank} the same order: {start(first)}.")


def no_shuffling_unless_asked(trial: CaseTrial) -> None:
    """Hold two epochs without shuffling to one order."""
    for rank, (first, second) in enumerate(zip(shares_in(trial), shares_in(trial, 1), strict=True)):
        if first != second:
            raise Violation(
                f"{about(trial)} and shuffle=False, rank {rank} gets {start(first)} in epoch 0 and {start(second)} in "
                "epoch 1; expected the same."
            )


def starts_anew(trial: CaseTrial) -> None:
    """Hold the iterations of an epoch to one order: without `set_epoch`, and after an iteration that was left."""
    if trial.case.left:
        pairs, words = (shares_in(trial), noted(trial, "made_again")), "after an iteration that was left half way"
    elif trial.case.epochs[0] is None:
        pairs, words = (shares_in(trial), shares_in(trial, 1)), "before any `set_epoch`"
    else:
        pairs, words = (shares_in(trial, 1), shares_in(trial)), "in a second iteration without `set_epoch`"
    for rank, (seen, expected) in enumerate(zip(*pairs, strict=True)):
        if seen != expected:
            raise Violation(
                f"{about(trial)}, rank {rank} gets {start(seen)} {words}; expected {start(expected)}, as in another "
                "iteration of that epoch.",
                "Make the indices anew in each `__iter__`, and return a new iterator: a sampler that is its own "
                "iterator goes on where it was left. Begin with `self.epoch = 0`.",
            )


def reshuffles_everything(trial: CaseTrial) -> None:
    """Hold epochs to other neighbours, other samples on each rank, and others that `drop_last` leaves out."""
    _hold_neighbours(trial)
    _hold_ranks(trial)
    if trial.case.drop_last:
        drop_last_drops_least(trial)
        _hold_dropped(trial)


def _hold_neighbours(trial: CaseTrial) -> None:
    """Hold epochs to few pairs of samples that come one after the other in two of them."""
    epochs = trial.case.epochs
    followers = [{pair for share in shares_in(trial, at) for pair in pairwise(share)} for at in range(len(epochs))]
    for (one, pairs), (other, others) in combinations(zip(epochs, followers, strict=True), 2):
        if len(pairs & others) > _MOSTLY * len(pairs):
            raise Violation(
                f"{about(trial)}, of {len(pairs)} samples that come after another one on their rank in epoch {one}, "
                f"{len(pairs & others)} come after the same one in epoch {other}.",
                "Draw a new permutation in each epoch, from a generator seeded with seed + epoch: one that is turned "
                "or shared out differently makes much the same batches.",
            )


def _hold_ranks(trial: CaseTrial) -> None:
    """Hold each rank to other samples in some epoch."""
    for rank, orders in enumerate(shares_by_rank(trial)):
        if len({frozenset(order) for order in orders}) == 1:
            raise Violation(
                f"{about(trial)}, rank {rank} gets the same samples in each of the epochs "
                f"{numbers(trial.case.epochs)}: {start(sorted(orders[0]))}; only their order changes.",
                "Shuffle the whole data set first, alike on all ranks; share out then.",
            )


def _hold_dropped(trial: CaseTrial) -> None:
    """Hold samples that one epoch leaves out to come in another."""
    every = range(trial.case.length)
    epochs = [{index for share in shares_in(trial, at) for index in share} for at in range(len(trial.case.epochs))]
    never = [index for index in every if not any(index in seen for seen in epochs)]
    if never and all(len(seen) + len(never) == len(every) for seen in epochs):
        raise Violation(
            f"{about(trial)} and drop_last=True, each of the epochs {numbers(trial.case.epochs)} leaves out the same "
            f"samples: {numbers(never)}.",
            "Shuffle first, and drop what is then last.",
        )


def reproducible_in_another_run(trial: CaseTrial) -> None:
    """Hold the order to be the same where the clock and the process id are others."""
    for rank, (first, later) in enumerate(zip(shares_in(trial), noted(trial, "made_later"), strict=True)):
        if first != later:
            raise Violation(
                f"{about(trial)}, rank {rank} gets {start(later)} in epoch 0 where `time.time()` and `os.getpid()` "
                f"give other numbers; expected {start(first)}, as before.",
                "Seed with seed + epoch, and with nothing else: a run that depends on when it was started, or in which "
                "process, can be neither repeated nor resumed.",
            )
