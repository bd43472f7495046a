"""The checks, in the order in which they run."""

from conformance.checks.check import Check
from conformance.components.evaluation import checks
from conformance.strategies import loop

_COUNTED, _TWICE = ("global_accuracy",), loop.evaluated_again(loop.even_evaluations)
CHECKS = (
    Check(checks.counts_are_waited_for, loop.gated(loop.even_evaluations)),
    Check(checks.global_accuracy, loop.even_evaluations, points=2, requires=("counts_are_waited_for",)),
    Check(checks.weighted_by_samples, loop.uneven_evaluations, points=2, requires=_COUNTED),
    Check(checks.counts_anew, _TWICE, requires=_COUNTED),
    Check(checks.ranks_with_fewer_batches, loop.ragged_evaluations, "extended", requires=_COUNTED),
    Check(checks.in_evaluation_mode, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(checks.leaves_the_mode, _TWICE, "extended", requires=_COUNTED),
    Check(checks.leaves_the_mode_of_each_module, _TWICE, "extended", requires=("leaves_the_mode",)),
    Check(checks.without_gradients, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(checks.leaves_gradients_on_or_off, _TWICE, "extended", requires=_COUNTED),
    Check(checks.leaves_the_parameters, _TWICE, "extended", requires=_COUNTED),
    Check(checks.leaves_the_global_generators, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(checks.counts_exactly, loop.half_evaluations, "extended", requires=_COUNTED),
)
