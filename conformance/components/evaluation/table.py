"""The checks, in the order in which they run."""

from conformance.checks.check import Check, described
from conformance.checks.generators import global_generators_stay
from conformance.components.evaluation import checks
from conformance.strategies import loop

_COUNTED, _TWICE = ("global_accuracy",), loop.evaluated_again(loop.even_evaluations)
CHECKS = (
    described(checks.counts_are_waited_for, loop.gated(loop.even_evaluations)),
    described(checks.global_accuracy, loop.even_evaluations, points=2, requires=("counts_are_waited_for",)),
    described(checks.weighted_by_samples, loop.uneven_evaluations, points=2, requires=_COUNTED),
    described(checks.counts_anew, _TWICE, requires=_COUNTED),
    described(checks.ranks_with_fewer_batches, loop.ragged_evaluations, "extended", requires=_COUNTED),
    described(checks.in_evaluation_mode, loop.even_evaluations, "extended", requires=_COUNTED),
    described(checks.leaves_the_mode, _TWICE, "extended", requires=_COUNTED),
    described(checks.leaves_the_mode_of_each_module, _TWICE, "extended", requires=("leaves_the_mode",)),
    described(checks.without_gradients, loop.even_evaluations, "extended", requires=_COUNTED),
    described(checks.leaves_gradients_on_or_off, _TWICE, "extended", requires=_COUNTED),
    described(checks.leaves_the_parameters, _TWICE, "extended", requires=_COUNTED),
    Check(
        "global_generators_stay",
        "Evaluation leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        loop.even_evaluations,
        global_generators_stay,
        "robustness",
        level="extended",
        requires=_COUNTED,
        advice="Seed nothing in evaluation: training would draw the same dropout masks and augmentations after each.",
    ),
    described(checks.counts_exactly, loop.half_evaluations, "extended", requires=_COUNTED),
)
