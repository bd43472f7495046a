"""The assertion about models with parameters of two dtypes.

Two correct trainings in float32 or bfloat16 drift apart. The oracle therefore holds gradients to the average of what
each rank's own batch gives with the parameters of that step, and parameters to what the optimizer makes of those
gradients (see `oracle.tolerance`). Ranks must agree to the last bit all the same.
"""

from itertools import product

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import element_apart
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.checks.words import step_words
from conformance.oracle.tolerance import is_rounded, unit_roundoff
from conformance.workload.numbers import torch_dtype

_FURTHER_BITS = 20


def trains_in_two_dtypes(trial: Trial) -> None:
    """Hold training to one process, and gradients of the wider dtype to more bits than the narrower one has.

    Rounding in the narrower layers reaches all gradients, so that limits do not tell the dtype in which a gradient was
    sent. Its last bits do.
    """
    trains(trial)
    if not (trial.scenario.replicated or trial.scenario.lossy):
        _hold_width(trial)


def _hold_width(trial: Trial) -> None:
    """Hold gradients of the wider dtype to more bits than the narrower one has."""
    ranks, dtypes = trial.scenario.world_size, trial.scenario.model.dtypes
    narrow = torch_dtype(max(dtypes.values(), key=unit_roundoff))
    wider = [name for name in trial.scenario.model.trainable if torch_dtype(dtypes[name]) != narrow]
    for (step, expected), (rank, seen) in product(enumerate(trial.expected.gradients), enumerate(trial.observations)):
        gradients = seen.gradients(step)
        for name in wider:
            if is_rounded(gradients[name], narrow, ranks) and _needs_more_bits(expected[name], narrow, ranks):
                dtype = str(narrow).removeprefix("torch.")
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, the gradient of `{name}`, a {dtypes[name]} "
                    f"parameter, was rounded to {dtype} on its way: {element_apart(gradients[name], expected[name])}, "
                    f"which {dtype} cannot hold.",
                    "A flat buffer has one dtype: group gradients by dtype, and let each travel in its own.",
                )


def _needs_more_bits(expected: torch.Tensor, narrow: torch.dtype, world_size: int) -> bool:
    """Return whether an element, and it times the world size, needs 20 bits more than a narrow dtype has.

    An average of few numbers that came out of a narrow layer may be one that the narrow dtype holds, by chance, where
    rounding is a little other than here. With so many bits, the chance is one in a million.
    """
    units = 2 / torch.finfo(narrow).eps * 2**_FURTHER_BITS
    scaled = [torch.frexp(expected * times).mantissa * units for times in (1, world_size)]
    return bool(torch.stack([one != one.round() for one in scaled]).all(0).any())
