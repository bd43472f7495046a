"""Checks of training in narrower dtypes: each step is right but for the rounding of one step.

Two correct trainings in float32 or bfloat16 drift apart, so gradients are held to the average of what each rank's own
batch gives with the parameters of that step, and parameters to what the optimizer makes of those gradients. Ranks must
agree to the last bit all the same.
"""

from conformance.checks.check import Trial
from conformance.checks.training import gradients_averaged, ranks_stay_identical, training_equals_one_process


def trains_in_float32(trial: Trial) -> None:
    """Training in float32 is right to the precision of float32, and ranks stay identical."""
    _trains(trial)


def trains_in_bfloat16(trial: Trial) -> None:
    """Training in bfloat16 is right to the precision of bfloat16, and ranks stay identical."""
    _trains(trial)


def mixed_dtypes(trial: Trial) -> None:
    """A model with parameters of two dtypes trains like any other."""
    _trains(trial)


def _trains(trial: Trial) -> None:
    if not trial.scenario.replicated:
        gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)
