"""Assertions about the generator with which a rank's data loader shuffles and seeds its workers."""

from itertools import combinations, pairwise

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial


def reproducible(trial: CaseTrial) -> None:
    """Hold two generators of one seed to one stream, whatever was drawn and seeded in between."""
    for rank, answer in enumerate(trial.answers):
        if answer["first"].tolist() != answer["again"].tolist():
            raise Violation(
                f"On rank {rank}, two generators from one seed, {int(trial.given[rank]['seed'])}, shuffle differently; "
                "before the second, torch's global generator was seeded anew, and `time.time()` and `os.getpid()` "
                "give other numbers.",
                "Return `torch.Generator()` after `.manual_seed(...)` with what seed and rank alone decide.",
            )


def ranks_draw_apart(trial: CaseTrial) -> None:
    """Hold the streams of any two ranks to being different."""
    for one, other in combinations(range(len(trial.answers)), 2):
        if trial.answers[one]["first"].tolist() == trial.answers[other]["first"].tolist():
            raise Violation(
                f"The generators of ranks {one} and {other} of {len(trial.answers)} give the same stream from the seed "
                f"{int(trial.given[one]['seed'])}.",
                "Seed with the seed and the rank, `torch.Generator().manual_seed(seed + rank)` for one.",
            )


def streams_are_apart(trial: CaseTrial) -> None:
    """Hold the streams of ranks to having no stretch in common, and each generator of a rank to being its own."""
    for one, other in combinations(range(len(trial.answers)), 2):
        seen = [trial.answers[rank]["stream"].tolist() for rank in (one, other)]
        pairs, others = (set(pairwise(numbers)) for numbers in seen)
        if pairs & others:
            raise Violation(
                f"From the seed {int(trial.given[one]['seed'])}, ranks {one} and {other} of {len(trial.answers)} draw "
                f"{len(pairs & others) + 1} of their first {len(seen[0])} numbers alike, one after the other: they "
                "have one stream, and begin at different places in it.",
                "Seed each rank's generator for itself, `torch.Generator().manual_seed(seed + rank)` for one.",
            )
    _hold_generators(trial)


def _hold_generators(trial: CaseTrial) -> None:
    """Hold a generator to its stream where another one of the rank has been drawn from."""
    for rank, answer in enumerate(trial.answers):
        if answer["first"].tolist() != answer["beside_another"].tolist():
            raise Violation(
                f"On rank {rank}, a generator shuffles differently once another one from the same seed, made after it, "
                "has been drawn from: they are one.",
                "Return a new `torch.Generator()` from each call, not one that the module keeps and seeds again: the "
                "loader of evaluation would change what the one of training draws.",
            )


def seed_decides(trial: CaseTrial) -> None:
    """Hold the streams of two seeds to being different."""
    for rank, answer in enumerate(trial.answers):
        if answer["first"].tolist() == answer["other_seed"].tolist():
            raise Violation(f"On rank {rank}, seeds that differ by 1000 give the same stream.")
