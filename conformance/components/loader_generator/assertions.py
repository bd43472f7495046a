"""Assertions about the generator with which a rank's data loader shuffles and seeds its workers."""

from itertools import combinations, pairwise

import torch

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial


def reproducible(trial: CaseTrial) -> None:
    """Hold two generators of one seed to one stream, whatever was drawn and seeded in between."""
    for rank, answer in enumerate(trial.answers):
        if not torch.equal(answer["again"], answer["first"]):
            raise Violation(
                f"On rank {rank}, two generators from one seed, {trial.given[rank]['seed']}, shuffle differently; "
                "before the second, torch's global generator was seeded anew, and `time.time()` and `os.getpid()` "
                "give other numbers.",
                "Return `torch.Generator()` after `.manual_seed(...)` with what seed and rank alone decide.",
            )


def ranks_draw_apart(trial: CaseTrial) -> None:
    """Hold the streams of any two ranks to being different."""
    for (one, answer), (other, others) in combinations(enumerate(trial.answers), 2):
        if torch.equal(answer["first"], others["first"]):
            raise Violation(
                f"The generators of ranks {one} and {other} of {len(trial.answers)} give the same stream from the seed "
                f"{trial.given[one]['seed']}.",
                "Seed with the seed and the rank, `torch.Generator().manual_seed(seed + rank)` for one.",
            )


def streams_are_apart(trial: CaseTrial) -> None:
    """Hold the streams of ranks to having no stretch in common, and each generator of a rank to being its own."""
    streams = [answer["stream"].tolist() for answer in trial.answers]
    for (one, pairs), (other, others) in combinations(enumerate(set(pairwise(stream)) for stream in streams), 2):
        if pairs & others:
            raise Violation(
                f"From the seed {trial.given[one]['seed']}, ranks {one} and {other} of {len(streams)} draw "
                f"{len(pairs & others) + 1} of their first {len(streams[one])} numbers alike, one after the other: "
                "they have one stream, and begin at different places in it.",
                "Seed each rank's generator for itself, `torch.Generator().manual_seed(seed + rank)` for one.",
            )
    for rank, answer in enumerate(trial.answers):
        if not torch.equal(answer["beside_another"], answer["first"]):
            raise Violation(
                f"On rank {rank}, a generator shuffles differently once another one from the same seed, made after it, "
                "has been drawn from: they are one.",
                "Return a new `torch.Generator()` from each call, not one that the module keeps and seeds again: the "
                "loader of evaluation would change what the one of training draws.",
            )


def seed_decides(trial: CaseTrial) -> None:
    """Hold the streams of two seeds to being different."""
    for rank, answer in enumerate(trial.answers):
        if torch.equal(answer["other_seed"], answer["first"]):
            raise Violation(f"On rank {rank}, seeds that differ by 1000 give the same stream.")
