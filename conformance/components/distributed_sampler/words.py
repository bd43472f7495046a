"""What ranks get of a data set in each epoch, and how it is told."""

import math
from collections import Counter
from collections.abc import Sequence

from conformance.checks.trial import CaseTrial


def cover(length: int, shares: list[list[int]]) -> str:
    """Return what is wrong with the samples of an epoch taken together, or nothing."""
    ranks, where = len(shares), said(length, len(shares))
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


def shares_in(trial: CaseTrial, at: int = 0) -> list[list[int]]:
    """Return what each rank got in one of the epochs."""
    return noted(trial, f"epoch/{at}")


def shares_by_rank(trial: CaseTrial) -> list[list[list[int]]]:
    """Return what each rank got in all of the epochs."""
    return [[answer[f"epoch/{at}"].tolist() for at in range(len(trial.case.epochs))] for answer in trial.answers]


def noted(trial: CaseTrial, name: str) -> list[list[int]]:
    """Return the indices that each rank has noted under a name."""
    return [answer[name].tolist() for answer in trial.answers]


def about(trial: CaseTrial) -> str:
    """Return how many samples there are on how many ranks in a trial."""
    return said(trial.case.length, trial.case.world_size)


def said(length: int, ranks: int) -> str:
    """Return how many samples there are on how many ranks, as a sentence begins."""
    return f"With {length} samples on {ranks} ranks"


def start(share: list[int]) -> str:
    """Return the first numbers of a share."""
    return numbers(share[:6]) + (", ..." if len(share) > 6 else "")  # noqa: PLR2004  the same six


def numbers(some: Sequence[int]) -> str:
    """Return them, one after the other."""
    return ", ".join(map(str, some)) or "none"
