"""Which checks synchronised batch norm is held to, in the order in which they run."""

from conformance.checks.check import described
from conformance.components.sync_batchnorm import checks, conversion, far_from_zero
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_FORWARD = ("forward_over_all_ranks",)
_TRAINS = ("backward_over_all_ranks", "running_statistics")
CHECKS = (
    described(conversion.conversion_keeps_state, loop.norms()),
    described(checks.statistics_are_waited_for, loop.gated(loop.norms()), requires=("conversion_keeps_state",)),
    described(checks.forward_over_all_ranks, loop.norms(), points=2, requires=("statistics_are_waited_for",)),
    described(checks.forward_of_uneven_batches, loop.norms(uneven=True, steps=2), requires=_FORWARD),
    described(checks.backward_over_all_ranks, loop.norms(), points=2, requires=_FORWARD),
    described(
        checks.backward_of_uneven_batches,
        loop.norms(uneven=True, steps=2),
        requires=("backward_over_all_ranks",),
    ),
    described(checks.gradients_of_weight_and_bias, loop.norms(), requires=_FORWARD),
    described(
        checks.gradients_of_the_first_layer,
        having(loop.norms(), first=True),
        requires=("gradients_of_weight_and_bias",),
    ),
    described(checks.running_statistics, loop.norms(uneven=True, steps=2), requires=_FORWARD),
    described(conversion.other_norms_stay, loop.norms(), "extended", requires=("conversion_keeps_state",)),
    described(conversion.norms_of_volumes, having(loop.norms(), dimensions=5), requires=_TRAINS),
    described(checks.changes_nothing_in_place, loop.norms(), requires=_FORWARD),
    described(
        checks.evaluation_by_running_statistics,
        loop.norms(uneven=True, steps=2),
        requires=("running_statistics",),
    ),
    described(
        checks.no_collective_in_evaluation,
        loop.norms(uneven=True, steps=2),
        requires=("evaluation_by_running_statistics",),
    ),
    described(checks.one_sample_on_each_rank, loop.norms_of_one_sample, requires=_TRAINS),
    described(checks.rank_without_samples, loop.norms_of_an_empty_rank, "extended", requires=_TRAINS),
    described(
        conversion.without_weight_and_bias,
        having(loop.norms(uneven=True), affine=False),
        "extended",
        requires=_TRAINS,
    ),
    described(conversion.without_running_statistics, loop.untracked_norms, "extended", requires=_TRAINS),
    described(
        checks.no_collective_without_running_statistics,
        loop.untracked_norms,
        "extended",
        requires=("without_running_statistics", "no_collective_in_evaluation"),
    ),
    described(
        checks.cumulative_average,
        having(loop.norms(uneven=True, steps=2), momentum=None),
        "extended",
        requires=("running_statistics",),
    ),
    described(conversion.frozen_weight_and_bias, having(loop.norms(), frozen=True), "extended", requires=_TRAINS),
    described(
        conversion.transposed_inputs,
        having(loop.norms(), dimensions=4, transposed=True),
        "extended",
        requires=_TRAINS,
    ),
    described(conversion.norm_at_the_top, having(loop.norms(), bare=True), "extended", requires=_TRAINS),
    described(
        conversion.conversion_keeps_the_mode,
        having(loop.norms(), evaluating=True),
        "extended",
        requires=("evaluation_by_running_statistics",),
    ),
    described(
        checks.gradients_in_evaluation,
        having(loop.norms(), evaluating=True),
        "extended",
        requires=("conversion_keeps_the_mode",),
    ),
    described(
        checks.forwards_before_backwards,
        having(loop.norms(steps=2), at_once=True),
        "extended",
        requires=_TRAINS,
    ),
    described(
        checks.statistics_without_gradients,
        having(loop.norms(steps=2), without_gradients=True),
        "extended",
        requires=_TRAINS,
    ),
    described(
        checks.inputs_of_other_lengths,
        having(loop.norms(uneven=True), dimensions=3, stretched=True),
        "extended",
        requires=_TRAINS,
    ),
    described(conversion.shared_norm_stays_shared, having(loop.norms(), shared=True), "extended", requires=_TRAINS),
    described(far_from_zero.statistics_far_from_zero, loop.far_norms, "extended", requires=_TRAINS),
)
