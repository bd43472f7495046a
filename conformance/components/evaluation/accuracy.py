"""The accuracy over ranks and batches, and what known mistakes give instead."""

from collections.abc import Sequence
from itertools import accumulate
from math import isclose

import torch

Counts = Sequence[Sequence[int]]  # by rank, then by batch
_ATTEMPTS = 50


def draw_right(sizes: Counts, generator: torch.Generator) -> Counts:
    """Draw, for each batch, the number of samples that are classified correctly.

    Of 50 draws, it returns the one on which the fewest mistakes give the right accuracy. Some always do: if all batches
    have the same size, the mean of accuracies is right.
    """
    draws = [
        [[int(torch.randint(size + 1, (), generator=generator)) for size in own] for own in sizes]
        for _ in range(_ATTEMPTS)
    ]
    return min(draws, key=lambda drawn: _undetected(sizes, drawn))


def _undetected(sizes: Counts, right: Counts) -> tuple[bool, int]:
    """Return whether the accuracy is 0 or 1, and how many values of known mistakes on ranks are equal to it."""
    wanted = accuracy(sizes, right)
    values = [value for on_ranks in mistaken(sizes, right).values() for value in on_ranks]
    return not 0 < wanted < 1, sum(isclose(value, wanted) for value in values)


def accuracy(sizes: Counts, right: Counts) -> float:
    """Return the share of correct samples over all ranks."""
    return _share(sum(map(sum, right)), sum(map(sum, sizes)))


def mistaken(sizes: Counts, right: Counts) -> dict[str, list[float]]:
    """Return, by the name of a mistake, the accuracy that it gives on each rank."""
    whole = accuracy(sizes, right)
    owns = [_share(sum(r), sum(s)) for r, s in zip(right, sizes, strict=True)]
    batches = [[_share(r, s) for r, s in zip(*pair, strict=True)] for pair in zip(right, sizes, strict=True)]
    means = [_share(sum(own), len(own)) for own in batches]
    total_right = sum(map(sum, right))
    everywhere = {
        "the mean of the ranks' accuracies": _share(sum(owns), len(owns)),
        "the mean of the batches' accuracies": _share(sum(means), len(means)),
        "the number of right samples, not their share": float(total_right),
        "the sum of the ranks' accuracies": sum(owns),
        "a percentage, not a share": 100 * whole,
    }
    return {
        "each rank's own accuracy, never reduced": owns,
        "all ranks' right samples over this rank's samples": [_share(total_right, sum(own)) for own in sizes],
        "running sums reduced again after every batch": [_running_sums_reduced(sizes, right)] * len(sizes),
        **{name: [value] * len(sizes) for name, value in everywhere.items()},
    }


def _running_sums_reduced(sizes: Counts, right: Counts) -> float:
    """Return the accuracy if running sums are all-reduced after each batch, so that earlier batches count more."""
    ranks = len(sizes)

    def summed(counts: Counts) -> int:
        batches = [sum(batch) for batch in zip(*counts, strict=False)]
        return list(accumulate(batches, lambda before, now: ranks * before + now))[-1] if batches else 0

    return _share(summed(right), summed(sizes))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
