"""Checks of distributed samplers: who gets which sample, in which epoch."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

from conformance.checks.check import CaseTrial, Violation, advising, moved_generators

_MOSTLY = 0.8


def equal_shares(trial: CaseTrial) -> None:
    """Every rank gets as many samples as every other, as many as `len(sampler)` says.

    A rank with fewer would leave the others waiting in the collectives of a step that it does not make.
    """
    counts = [len(one) for one in _shares(trial)]
    if len(set(counts)) > 1:
        raise Violation(
            f"{_set(trial)}, the ranks get {_listed(counts)} samples; expected as many on each.",
            "Add samples from the start, again and again where there are few, until the length divides by the number "
            "of ranks; or drop the last ones.",
        )
    for rank, answer in enumerate(trial.answers):
        if int(answer["length"]) != counts[rank]:
            raise Violation(
                f"{_set(trial)}, `len(sampler)` on rank {rank} is {int(answer['length'])}, but it gives "
                f"{counts[rank]} samples.",
                "`len(sampler)` is the number of this rank's samples: a DataLoader and a scheduler count steps by it.",
            )


def fewer_samples_than_ranks(trial: CaseTrial) -> None:
    """Where there are fewer samples than ranks, all ranks still get one, which may be the same one several times."""
    equal_shares(trial)


def every_sample_once(trial: CaseTrial) -> None:
    """All samples are used, each by one rank; only what is needed to even out the shares is used twice."""
    problem = _cover(trial.case.length, _shares(trial))
    if problem:
        raise Violation(
            problem, "Let rank r take the indices r, r + N, r + 2N, ... of one list, the same on all ranks."
        )


def drop_last_drops_least(trial: CaseTrial) -> None:
    """With `drop_last`, shares are equal, no sample is used twice, and fewer are left out than there are ranks."""
    dropped = "Each rank gets length // N samples: drop the rest before sharing out."
    with advising(dropped):
        equal_shares(trial)
    case = trial.case
    seen = Counter(index for share in _shares(trial) for index in share)
    twice = sorted(index for index, times in seen.items() if times > 1)
    expected = case.length // case.world_size * case.world_size
    if twice or len(seen) != expected:
        raise Violation(
            f"{_set(trial)} and drop_last=True, {len(seen)} samples are used"
            + (f", sample {twice[0]} {seen[twice[0]]} times" if twice else "")
            + f"; expected {expected}, each once.",
            dropped,
        )


def seed_shared_by_ranks(trial: CaseTrial) -> None:
    """In every epoch, all ranks shuffle alike: what they get is still disjoint, and all samples are used."""
    for epoch in (0, 1):
        problem = _cover(trial.case.length, _shares(trial, epoch))
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
    for rank, orders in enumerate(_by_rank(trial)):
        for (one, first), (other, second) in combinations(zip(trial.case.epochs, orders, strict=True), 2):
            if first == second:
                raise Violation(
                    f"{_set(trial)}, rank {rank} gets the same samples in the same order in epochs {one} and {other}: "
                    f"{_start(first)}.",
                    "Seed the generator of each iteration with seed + epoch, where `set_epoch(epoch)` keeps the epoch.",
                )


def epochs_repeat(trial: CaseTrial) -> None:
    """The same seed and epoch give the same order again, so that a training run can be repeated and resumed."""
    last, epochs = trial.case.last_epoch, len(trial.case.epochs)
    set_again, from_another = (0, _shares(trial, 2)), (last, _noted(trial, "made_again"))
    for (epoch, shares), words in ((set_again, "when it is set a second time"), (from_another, "from a new sampler")):
        before = _shares(trial, 0 if epoch == 0 else epochs - 1)
        for rank, (first, again) in enumerate(zip(before, shares, strict=True)):
            if first != again:
                raise Violation(
                    f"{_set(trial)}, epoch {epoch} is another one on rank {rank} {words}: first {_start(first)}, then "
                    f"{_start(again)}.",
                    "Make the generator anew at the start of each iteration, from seed and epoch alone.",
                )


def seed_decides(trial: CaseTrial) -> None:
    """Another seed gives another order."""
    for rank, (first, other) in enumerate(zip(_shares(trial), _noted(trial, "other_seed"), strict=True)):
        if first == other:
            raise Violation(f"{_set(trial)}, two different seeds give rank {rank} the same order: {_start(first)}.")


def no_shuffling_unless_asked(trial: CaseTrial) -> None:
    """With `shuffle=False`, every epoch has the same order."""
    for rank, (first, second) in enumerate(zip(_shares(trial), _shares(trial, 1), strict=True)):
        if first != second:
            raise Violation(
                f"{_set(trial)} and shuffle=False, rank {rank} gets {_start(first)} in epoch 0 and {_start(second)} in "
                "epoch 1; expected the same."
            )


def starts_over(trial: CaseTrial) -> None:
    """An iteration that was left half way, as by `break`, changes nothing for the next one."""
    for rank, (after, fresh) in enumerate(zip(_shares(trial), _noted(trial, "made_again"), strict=True)):
        if after != fresh:
            raise Violation(
                f"{_set(trial)}, rank {rank} left an iteration after its first sample, and the next one gives "
                f"{_start(after)}; expected {_start(fresh)}, as from a new sampler.",
                "Return a new iterator from each `__iter__`: a sampler that is its own iterator goes on where it was "
                "left.",
            )


def many_samples(trial: CaseTrial) -> None:
    """Of a data set with more than 65,536 samples, all are used."""
    problem = _cover(trial.case.length, _shares(trial))
    if problem:
        raise Violation(problem, "Keep indices in Python's int or in int64: 16 bits hold 65,536 numbers.")


def epochs_have_other_neighbours(trial: CaseTrial) -> None:
    """In another epoch, samples come after others than before: it is another shuffle, not one that is turned."""
    epochs = trial.case.epochs
    followers = [{pair for share in _shares(trial, at) for pair in pairwise(share)} for at in range(len(epochs))]
    for (one, pairs), (other, others) in combinations(zip(epochs, followers, strict=True), 2):
        if len(pairs & others) > _MOSTLY * len(pairs):
            raise Violation(
                f"{_set(trial)}, of {len(pairs)} samples that come after another one on their rank in epoch {one}, "
                f"{len(pairs & others)} come after the same one in epoch {other}.",
                "Draw a new permutation in each epoch, from a generator seeded with seed + epoch: one that is turned "
                "or shared out differently makes much the same batches.",
            )


def iterates_again(trial: CaseTrial) -> None:
    """A sampler may be iterated over more than once in an epoch, and gives the same each time."""
    for rank, (first, again) in enumerate(zip(_shares(trial), _shares(trial, 1), strict=True)):
        if first != again:
            raise Violation(
                f"{_set(trial)}, a second iteration on rank {rank}, without `set_epoch` in between, gives "
                f"{_start(again)}; expected {_start(first)}, as the first one.",
                "Make the indices anew in `__iter__`, not in `set_epoch`.",
            )


def begins_with_epoch_0(trial: CaseTrial) -> None:
    """A sampler whose `set_epoch` nobody has called gives epoch 0."""
    for rank, (unset, first) in enumerate(zip(_shares(trial), _shares(trial, 1), strict=True)):
        if unset != first:
            raise Violation(
                f"{_set(trial)}, rank {rank} gets {_start(unset)} before any `set_epoch`, and {_start(first)} in "
                "epoch 0; expected the same.",
                "Let the sampler begin with `self.epoch = 0`.",
            )


def mixes_over_ranks(trial: CaseTrial) -> None:
    """In another epoch a rank gets other samples, not its own in another order."""
    for rank, orders in enumerate(_by_rank(trial)):
        if len({frozenset(order) for order in orders}) == 1:
            raise Violation(
                f"{_set(trial)}, rank {rank} gets the same samples in each of the epochs "
                f"{_listed(trial.case.epochs)}: {_start(sorted(orders[0]))}; only their order changes.",
                "Shuffle the whole data set first, alike on all ranks; share out then.",
            )


def drops_others_in_other_epochs(trial: CaseTrial) -> None:
    """With `drop_last` and shuffling too, as few samples are left out; those of one epoch come in another."""
    drop_last_drops_least(trial)
    every = range(trial.case.length)
    epochs = [{index for share in _shares(trial, at) for index in share} for at in range(len(trial.case.epochs))]
    never = [index for index in every if not any(index in seen for seen in epochs)]
    if never and all(len(seen) + len(never) == len(every) for seen in epochs):
        raise Violation(
            f"{_set(trial)} and drop_last=True, each of the epochs {_listed(trial.case.epochs)} leaves out the same "
            f"samples: {_listed(never)}.",
            "Shuffle first, and drop what is then last.",
        )


def shares_of_other_replicas(trial: CaseTrial) -> None:
    """`num_replicas` and `rank` decide the share, not the process group: a rank may ask for those of other replicas."""
    replicas = trial.case.replicas
    for rank, answer in enumerate(trial.answers):
        problem = _cover(trial.case.length, [answer[f"share/{share}"].tolist() for share in range(replicas)])
        if problem:
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} asks for the shares of {replicas} replicas. {problem}",
                "Use the arguments `num_replicas` and `rank`, not `dist.get_world_size()` and `dist.get_rank()`.",
            )


def leaves_the_global_generator(trial: CaseTrial) -> None:
    """Shuffling leaves the global generators as they were: torch's, Python's and NumPy's."""
    for rank, answer in enumerate(trial.answers):
        moved = moved_generators(answer)
        if moved:
            raise Violation(
                f"{_set(trial)}, iteration on rank {rank} moves the global generator: {moved}.",
                "Shuffle with a `torch.Generator()` of its own: who seeds the global one makes dropout masks and "
                "augmentations repeat in every epoch, alike on all ranks.",
            )


def repeats_in_another_run(trial: CaseTrial) -> None:
    """The order depends on seed and epoch alone: it is the same at another time, and in another process."""
    for rank, (first, later) in enumerate(zip(_shares(trial), _noted(trial, "made_later"), strict=True)):
        if first != later:
            raise Violation(
                f"{_set(trial)}, rank {rank} gets {_start(later)} in epoch 0 where `time.time()` and `os.getpid()` "
                f"give other numbers; expected {_start(first)}, as before.",
                "Seed with seed + epoch, and with nothing else: a run that depends on when it was started, or in which "
                "process, can be neither repeated nor resumed.",
            )


def _cover(length: int, shares: list[list[int]]) -> str:
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


def _shares(trial: CaseTrial, at: int = 0) -> list[list[int]]:
    """Return what each rank got in one of the epochs."""
    return _noted(trial, f"epoch/{at}")


def _by_rank(trial: CaseTrial) -> list[list[list[int]]]:
    """Return what each rank got in all of the epochs."""
    return [[answer[f"epoch/{at}"].tolist() for at in range(len(trial.case.epochs))] for answer in trial.answers]


def _noted(trial: CaseTrial, name: str) -> list[list[int]]:
    return [answer[name].tolist() for answer in trial.answers]


def _set(trial: CaseTrial) -> str:
    return _said(trial.case.length, trial.case.world_size)


def _said(length: int, ranks: int) -> str:
    return f"With {length} samples on {ranks} ranks"


def _start(share: list[int]) -> str:
    return _listed(share[:6]) + (", ..." if len(share) > 6 else "")  # noqa: PLR2004  the same six


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
