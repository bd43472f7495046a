"""The accuracy over ranks and batches, and what known mistakes give instead."""

from collections.abc import Sequence
from functools import reduce
from math import isclose, nan

import torch

Counts = Sequence[Sequence[int]]  # by rank, then by batch
_ATTEMPTS = 50


def draw_right(sizes: Counts, generator: torch.Generator) -> Counts:
    """Draw, for each batch, the number of samples that are classified correctly.

    Of 50 draws, it returns the one on which the fewest mistakes give the right accuracy. Some always do: if all batches
    have the same size, the mean of accuracies is right.
    """

    def undetected(right: Counts) -> tuple[bool, int]:
        """Return whether the accuracy is 0 or 1, and how many values of known mistakes on ranks are equal to it."""
        wanted = accuracy(sizes, right)
        values = [value for on_ranks in mistaken(sizes, right).values() for value in on_ranks]
        return not 0 < wanted < 1, sum(isclose(value, wanted) for value in values)

    draws = (
        [[int(torch.randint(size + 1, (), generator=generator)) for size in own] for own in sizes]
        for _ in range(_ATTEMPTS)
    )
    return min(draws, key=undetected)


def accuracy(sizes: Counts, right: Counts) -> float:
    """Return the share of correct samples over all ranks."""
    return _share(sum(map(sum, right)), sum(map(sum, sizes)))


def mistaken(sizes: Counts, right: Counts) -> dict[str, list[float]]:
    """Return, by the name of a mistake, the accuracy that it gives on each rank."""
    ranks, total = len(sizes), sum(map(sum, right))
    owns = [_share(sum(r), sum(s)) for r, s in zip(right, sizes, strict=True)]
    means = [_share(sum(map(_share, r, s)), len(s)) for r, s in zip(right, sizes, strict=True)]
    everywhere = {
        "the mean of the ranks' accuracies": _share(sum(owns), ranks),
        "the mean of the batches' accuracies": _share(sum(means), ranks),
        "the number of right samples, not their share": float(total),
        "the sum of the ranks' accuracies": sum(owns),
        "the accuracy of rank 0's samples alone": owns[0],
        "a percentage, not a share": 100 * accuracy(sizes, right),
    }
    return {
        "each rank's own accuracy, never reduced": owns,
        "all ranks' right samples over this rank's samples": [_share(total, sum(own)) for own in sizes],
        "running sums reduced again after every batch": [_share(_running(right), _running(sizes))] * ranks,
        **{name: [value] * ranks for name, value in everywhere.items()},
    }


def _running(counts: Counts) -> int:
    """Return a running sum that ranks all-reduce again after each batch, so that earlier batches count more."""
    return reduce(lambda before, now: len(counts) * before + sum(now), zip(*counts, strict=False), 0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan
