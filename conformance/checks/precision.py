"""The assertion about models with parameters of two dtypes.

Two correct trainings in float32 or bfloat16 drift apart. The oracle therefore holds gradients to the average of what
each rank's own batch gives with the parameters of that step, and parameters to what the optimizer makes of those
gradients (see `oracle.tolerance`). Ranks must agree to the last bit all the same.
"""

from collections.abc import Iterator

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import element_apart
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.checks.words import step_words
from conformance.oracle.tolerance import is_rounded, unit_roundoff
from conformance.workload.numbers import Tensors, torch_dtype

_FURTHER_BITS = 20


def trains_in_two_dtypes(trial: Trial) -> None:
    """Hold training to one process, and gradients of the wider dtype to more bits than the narrower one has.

    Rounding in the narrower layers reaches all gradients, so that limits do not tell the dtype in which a gradient was
    sent. Its last bits do.
    """
    trains(trial)
    if not trial.scenario.replicated:
        _hold_width(trial)


def _hold_width(trial: Trial) -> None:
    """Hold gradients of the wider dtype to more bits than the narrower one has."""
    ranks, narrow = trial.scenario.world_size, _narrowest(trial)
    for where, seen, expected in _all_gradients(trial):
        for name in _wider(trial):
            if is_rounded(seen[name], narrow, ranks) and _needs_more_bits(expected[name], narrow, ranks):
                dtype = str(narrow).removeprefix("torch.")
                raise Violation(
                    f"{where}, the gradient of `{name}`, a {trial.scenario.model.dtypes[name]} parameter, was rounded "
                    f"to {dtype} on its way: {element_apart(seen[name], expected[name])}, which {dtype} cannot hold.",
                    "A flat buffer has one dtype: group gradients by dtype, and let each travel in its own.",
                )


def _narrowest(trial: Trial) -> torch.dtype:
    return torch_dtype(max(trial.scenario.model.dtypes.values(), key=unit_roundoff))


def _wider(trial: Trial) -> list[str]:
    """Return the trainable parameters that have a wider dtype than the narrowest."""
    spec = trial.scenario.model
    return [name for name in spec.trainable if torch_dtype(spec.dtypes[name]) != _narrowest(trial)]


def _all_gradients(trial: Trial) -> Iterator[tuple[str, Tensors, Tensors]]:
    """Yield where, what was seen, and what was expected, for each step and rank."""
    for step, expected in enumerate(trial.expected.gradients):
        for rank, seen in enumerate(trial.observations):
            yield f"On rank {rank} at {step_words(trial.scenario, step)}", seen.gradients(step), expected


def _needs_more_bits(expected: torch.Tensor, narrow: torch.dtype, world_size: int) -> bool:
    """Return whether an element, and it times the world size, needs 20 bits more than a narrow dtype has.

    An average of few numbers that came out of a narrow layer may be one that the narrow dtype holds, by chance, where
    rounding is a little other than here. With so many bits, the chance is one in a million.
    """
    units = 2 / torch.finfo(narrow).eps * 2**_FURTHER_BITS
    scaled = [torch.frexp(expected * times).mantissa * units for times in (1, world_size)]
    return bool(torch.stack([one != one.round() for one in scaled]).all(0).any())
