"""Assertions about the order of samples: when it must be the same, and when another."""

from itertools import combinations, pairwise

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.shares import (
    Shares,
    about,
    drop_last_drops_least,
    listed,
    noted,
    shares_in,
    start,
)

_MOSTLY = 0.8
_SAME_EPOCH = "in another iteration of that epoch"


def shuffles(trial: CaseTrial) -> None:
    """Hold shares that are shuffled to being unsorted."""
    for rank, share in enumerate(shares_in(trial)):
        if share == sorted(share):
            raise Violation(f"{about(trial)} and shuffle=True, rank {rank} gets its samples in order: {start(share)}.")


def set_epoch_reshuffles(trial: CaseTrial) -> None:
    """Hold the orders of different epochs to being different."""
    for (one, shares), (other, others) in combinations(zip(trial.case.epochs, _epochs(trial), strict=True), 2):
        for rank, (first, second) in enumerate(zip(shares, others, strict=True)):
            if first == second:
                raise Violation(
                    f"{about(trial)}, rank {rank} gets the same samples in the same order in epochs {one} and {other}: "
                    f"{start(first)}.",
                    "Seed the generator of each iteration with seed + epoch, where `set_epoch(epoch)` keeps the epoch.",
                )


def seed_decides(trial: CaseTrial) -> None:
    """Hold the orders of two seeds to being different."""
    for rank, (first, other) in enumerate(zip(shares_in(trial), noted(trial, "other_seed"), strict=True)):
        if first == other:
            raise Violation(f"{about(trial)}, two different seeds give rank {rank} the same order: {start(first)}.")


def no_shuffling_unless_asked(trial: CaseTrial) -> None:
    """Hold two epochs without shuffling to one order."""
    _hold_same(trial, shares_in(trial, 1), shares_in(trial), "with shuffle=False in epoch 1", before="in epoch 0")


def reproducible(trial: CaseTrial) -> None:
    """Hold an epoch that is set again, or on a new sampler, to the same order."""
    advice = "Make the generator anew at the start of each iteration, from seed and epoch alone."
    again, (first, *_, last) = shares_in(trial, 2), _epochs(trial)
    _hold_same(trial, again, first, "in epoch 0 when it is set a second time", advice=advice)
    words = f"in epoch {trial.case.last_epoch} from a new sampler"
    _hold_same(trial, noted(trial, "made_again"), last, words, advice=advice)


def reproducible_in_another_run(trial: CaseTrial) -> None:
    """Hold the order to be the same where the clock and the process id are others."""
    words = "in epoch 0 where `time.time()` and `os.getpid()` give other numbers"
    advice = (
        "Seed with seed + epoch, and with nothing else: a run that depends on when it was started, or in which "
        "process, can be neither repeated nor resumed."
    )
    _hold_same(trial, noted(trial, "made_later"), shares_in(trial), words, advice=advice)


def starts_anew(trial: CaseTrial) -> None:
    """Hold the iterations of an epoch to one order: without `set_epoch`, and after an iteration that was left."""
    if trial.case.left:
        pair, words = (shares_in(trial), noted(trial, "made_again")), "after an iteration that was left half way"
    elif trial.case.epochs[0] is None:
        pair, words = (shares_in(trial), shares_in(trial, 1)), "before any `set_epoch`"
    else:
        pair, words = (shares_in(trial, 1), shares_in(trial)), "in a second iteration without `set_epoch`"
    advice = (
        "Make the indices anew in each `__iter__`, and return a new iterator: a sampler that is its own iterator goes "
        "on where it was left. Begin with `self.epoch = 0`."
    )
    _hold_same(trial, *pair, words, advice=advice)


def reshuffles_everything(trial: CaseTrial) -> None:
    """Hold epochs to other neighbours, other samples on each rank, and others that `drop_last` leaves out."""
    _hold_neighbours(trial)
    _hold_ranks(trial)
    if trial.case.drop_last:
        drop_last_drops_least(trial)
        _hold_dropped(trial)


def _epochs(trial: CaseTrial) -> list[Shares]:
    """Return what each rank got in each epoch."""
    return [shares_in(trial, at) for at in range(len(trial.case.epochs))]


def _hold_same(
    trial: CaseTrial, seen: Shares, expected: Shares, words: str, *, before: str = _SAME_EPOCH, advice: str = ""
) -> None:
    """Hold each rank to the order that it got before."""
    for rank, (share, wanted) in enumerate(zip(seen, expected, strict=True)):
        if share != wanted:
            raise Violation(
                f"{about(trial)}, rank {rank} gets {start(share)} {words}; expected the same as {before}: "
                f"{start(wanted)}.",
                advice,
            )


def _hold_neighbours(trial: CaseTrial) -> None:
    """Hold epochs to few pairs of samples that come one after the other in two of them."""
    followers = [{pair for share in shares for pair in pairwise(share)} for shares in _epochs(trial)]
    for (one, pairs), (other, others) in combinations(zip(trial.case.epochs, followers, strict=True), 2):
        if len(pairs & others) > _MOSTLY * len(pairs):
            raise Violation(
                f"{about(trial)}, of {len(pairs)} samples that come after another one on their rank in epoch {one}, "
                f"{len(pairs & others)} come after the same one in epoch {other}.",
                "Draw a new permutation in each epoch, from a generator seeded with seed + epoch: one that is turned "
                "or shared out differently makes much the same batches.",
            )


def _hold_ranks(trial: CaseTrial) -> None:
    """Hold each rank to other samples in some epoch."""
    for rank, orders in enumerate(zip(*_epochs(trial), strict=True)):
        if len({frozenset(order) for order in orders}) == 1:
            raise Violation(
                f"{about(trial)}, rank {rank} gets the same samples in each of the epochs "
                f"{listed(trial.case.epochs)}: {start(sorted(orders[0]))}; only their order changes.",
                "Shuffle the whole data set first, alike on all ranks; share out then.",
            )


def _hold_dropped(trial: CaseTrial) -> None:
    """Hold samples that one epoch leaves out to come in another."""
    every = range(trial.case.length)
    epochs = [{index for share in shares for index in share} for shares in _epochs(trial)]
    never = [index for index in every if not any(index in seen for seen in epochs)]
    if never and all(len(seen) + len(never) == len(every) for seen in epochs):
        raise Violation(
            f"{about(trial)} and drop_last=True, each of the epochs {listed(trial.case.epochs)} leaves out the same "
            f"samples: {listed(never)}.",
            "Shuffle first, and drop what is then last.",
        )
