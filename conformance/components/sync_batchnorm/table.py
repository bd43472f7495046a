"""Which checks synchronised batch norm is held to, in the order in which they run."""

from conformance.checks.check import Check
from conformance.components.sync_batchnorm import checks, conversion, far_from_zero
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_FORWARD = ("forward_over_all_ranks",)
_TRAINS = ("backward_over_all_ranks", "running_statistics")
CHECKS = (
    Check(conversion.conversion_keeps_state, loop.norms()),
    Check(checks.statistics_are_waited_for, loop.gated(loop.norms()), requires=("conversion_keeps_state",)),
    Check(checks.forward_over_all_ranks, loop.norms(), points=2, requires=("statistics_are_waited_for",)),
    Check(checks.forward_of_uneven_batches, loop.norms(uneven=True, steps=2), requires=_FORWARD),
    Check(checks.backward_over_all_ranks, loop.norms(), points=2, requires=_FORWARD),
    Check(
        checks.backward_of_uneven_batches,
        loop.norms(uneven=True, steps=2),
        requires=("backward_over_all_ranks",),
    ),
    Check(checks.gradients_of_weight_and_bias, loop.norms(), requires=_FORWARD),
    Check(
        checks.gradients_of_the_first_layer,
        having(loop.norms(), first=True),
        requires=("gradients_of_weight_and_bias",),
    ),
    Check(checks.running_statistics, loop.norms(uneven=True, steps=2), requires=_FORWARD),
    Check(conversion.other_norms_stay, loop.norms(), "extended", requires=("conversion_keeps_state",)),
    Check(conversion.norms_of_volumes, having(loop.norms(), dimensions=5), requires=_TRAINS),
    Check(checks.changes_nothing_in_place, loop.norms(), requires=_FORWARD),
    Check(
        checks.evaluation_by_running_statistics,
        loop.norms(uneven=True, steps=2),
        requires=("running_statistics",),
    ),
    Check(
        checks.no_collective_in_evaluation,
        loop.norms(uneven=True, steps=2),
        requires=("evaluation_by_running_statistics",),
    ),
    Check(checks.one_sample_on_each_rank, loop.norms_of_one_sample, requires=_TRAINS),
    Check(checks.rank_without_samples, loop.norms_of_an_empty_rank, "extended", requires=_TRAINS),
    Check(
        conversion.without_weight_and_bias,
        having(loop.norms(uneven=True), affine=False),
        "extended",
        requires=_TRAINS,
    ),
    Check(conversion.without_running_statistics, loop.untracked_norms, "extended", requires=_TRAINS),
    Check(
        checks.no_collective_without_running_statistics,
        loop.untracked_norms,
        "extended",
        requires=("without_running_statistics", "no_collective_in_evaluation"),
    ),
    Check(
        checks.cumulative_average,
        having(loop.norms(uneven=True, steps=2), momentum=None),
        "extended",
        requires=("running_statistics",),
    ),
    Check(conversion.frozen_weight_and_bias, having(loop.norms(), frozen=True), "extended", requires=_TRAINS),
    Check(
        conversion.transposed_inputs,
        having(loop.norms(), dimensions=4, transposed=True),
        "extended",
        requires=_TRAINS,
    ),
    Check(conversion.norm_at_the_top, having(loop.norms(), bare=True), "extended", requires=_TRAINS),
    Check(
        conversion.conversion_keeps_the_mode,
        having(loop.norms(), evaluating=True),
        "extended",
        requires=("evaluation_by_running_statistics",),
    ),
    Check(
        checks.gradients_in_evaluation,
        having(loop.norms(), evaluating=True),
        "extended",
        requires=("conversion_keeps_the_mode",),
    ),
    Check(
        checks.forwards_before_backwards,
        having(loop.norms(steps=2), at_once=True),
        "extended",
        requires=_TRAINS,
    ),
    Check(
        checks.statistics_without_gradients,
        having(loop.norms(steps=2), without_gradients=True),
        "extended",
        requires=_TRAINS,
    ),
    Check(
        checks.inputs_of_other_lengths,
        having(loop.norms(uneven=True), dimensions=3, stretched=True),
        "extended",
        requires=_TRAINS,
    ),
    Check(conversion.shared_norm_stays_shared, having(loop.norms(), shared=True), "extended", requires=_TRAINS),
    Check(far_from_zero.statistics_far_from_zero, loop.far_norms, "extended", requires=_TRAINS),
)
