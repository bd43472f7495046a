"""Checks of the order in which distributed samplers give samples: when it is the same, and when another."""

from itertools import combinations, pairwise

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.shares import about, noted, numbers, shares_by_rank, shares_in, start

_MOSTLY = 0.8


def shuffles(trial: CaseTrial) -> None:
    """With `shuffle=True`, the samples come in another order than without."""
    for rank, share in enumerate(shares_in(trial)):
        if share == sorted(share):
            raise Violation(f"{about(trial)} and shuffle=True, rank {rank} gets its samples in order: {start(share)}.")


def set_epoch_reshuffles(trial: CaseTrial) -> None:
    """After `set_epoch`, the order is another one."""
    for rank, orders in enumerate(shares_by_rank(trial)):
        for (one, first), (other, second) in combinations(zip(trial.case.epochs, orders, strict=True), 2):
            if first == second:
                raise Violation(
                    f"{about(trial)}, rank {rank} gets the same samples in the same order in epochs {one} and {other}: "
                    f"{start(first)}.",
                    "Seed the generator of each iteration with seed + epoch, where `set_epoch(epoch)` keeps the epoch.",
                )


def epochs_repeat(trial: CaseTrial) -> None:
    """The same seed and epoch give the same order again, so that a training run can be repeated and resumed."""
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
    """Another seed gives another order."""
    for rank, (first, other) in enumerate(zip(shares_in(trial), noted(trial, "other_seed"), strict=True)):
        if first == other:
            raise Violation(f"{about(trial)}, two different seeds give rank {rank} the same order: {start(first)}.")


def no_shuffling_unless_asked(trial: CaseTrial) -> None:
    """With `shuffle=False`, every epoch has the same order."""
    for rank, (first, second) in enumerate(zip(shares_in(trial), shares_in(trial, 1), strict=True)):
        if first != second:
            raise Violation(
                f"{about(trial)} and shuffle=False, rank {rank} gets {start(first)} in epoch 0 and {start(second)} in "
                "epoch 1; expected the same."
            )


def starts_over(trial: CaseTrial) -> None:
    """An iteration that was left half way, as by `break`, changes nothing for the next one."""
    for rank, (after, fresh) in enumerate(zip(shares_in(trial), noted(trial, "made_again"), strict=True)):
        if after != fresh:
            raise Violation(
                f"{about(trial)}, rank {rank} left an iteration after its first sample, and the next one gives "
                f"{start(after)}; expected {start(fresh)}, as from a new sampler.",
                "Return a new iterator from each `__iter__`: a sampler that is its own iterator goes on where it was "
                "left.",
            )


def epochs_have_other_neighbours(trial: CaseTrial) -> None:
    """In another epoch, samples come after others than before: it is another shuffle, not one that is turned."""
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


def iterates_again(trial: CaseTrial) -> None:
    """A sampler may be iterated over more than once in an epoch, and gives the same each time."""
    for rank, (first, again) in enumerate(zip(shares_in(trial), shares_in(trial, 1), strict=True)):
        if first != again:
            raise Violation(
                f"{about(trial)}, a second iteration on rank {rank}, without `set_epoch` in between, gives "
                f"{start(again)}; expected {start(first)}, as the first one.",
                "Make the indices anew in `__iter__`, not in `set_epoch`.",
            )


def begins_with_epoch_0(trial: CaseTrial) -> None:
    """A sampler whose `set_epoch` nobody has called gives epoch 0."""
    for rank, (unset, first) in enumerate(zip(shares_in(trial), shares_in(trial, 1), strict=True)):
        if unset != first:
            raise Violation(
                f"{about(trial)}, rank {rank} gets {start(unset)} before any `set_epoch`, and {start(first)} in "
                "epoch 0; expected the same.",
                "Let the sampler begin with `self.epoch = 0`.",
            )


def mixes_over_ranks(trial: CaseTrial) -> None:
    """In another epoch a rank gets other samples, not its own in another order."""
    for rank, orders in enumerate(shares_by_rank(trial)):
        if len({frozenset(order) for order in orders}) == 1:
            raise Violation(
                f"{about(trial)}, rank {rank} gets the same samples in each of the epochs "
                f"{numbers(trial.case.epochs)}: {start(sorted(orders[0]))}; only their order changes.",
                "Shuffle the whole data set first, alike on all ranks; share out then.",
            )


def repeats_in_another_run(trial: CaseTrial) -> None:
    """The order depends on seed and epoch alone: it is the same at another time, and in another process."""
    for rank, (first, later) in enumerate(zip(shares_in(trial), noted(trial, "made_later"), strict=True)):
        if first != later:
            raise Violation(
                f"{about(trial)}, rank {rank} gets {start(later)} in epoch 0 where `time.time()` and `os.getpid()` "
                f"give other numbers; expected {start(first)}, as before.",
                "Seed with seed + epoch, and with nothing else: a run that depends on when it was started, or in which "
                "process, can be neither repeated nor resumed.",
            )
