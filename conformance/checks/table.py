"""Which checks each component is held to, in the order in which they run."""

from dataclasses import replace

from conformance.checks import communication, extended, optimizer, precision, traffic, training
from conformance.checks.check import UNSYNCHRONISED, Check
from conformance.checks.loop_table import LOOP_CHECKS
from conformance.contract import COMPONENTS, Component
from conformance.strategies import changing
from conformance.strategies import extended as beyond
from conformance.strategies import optimizer as stepping
from conformance.strategies import wrapper as wrapping

_OUT = (UNSYNCHRONISED,)
_SEEN = (UNSYNCHRONISED, "summed, not averaged", "divided twice", "never trained")
_RUNS = ("runs_to_the_end",)
_WAITED = ("results_are_waited_for",)
_NUMBERS = ("gradients_averaged",)
_SENT_ONCE = ("gradients_travel_once",)

_WRAPPER_CORE = (
    Check(training.runs_to_the_end, wrapping.plain, rules_out=_OUT),
    Check(communication.results_are_waited_for, wrapping.gated, requires=_RUNS, shows="waits"),
    Check(training.initial_broadcast, wrapping.plain, requires=_WAITED, shows="broadcast", rules_out=_OUT),
    Check(training.one_rank, wrapping.on_one_rank, requires=_RUNS),
    Check(training.gradients_averaged, wrapping.plain, points=2, requires=("initial_broadcast",), rules_out=_OUT),
    Check(training.training_equals_one_process, wrapping.plain, points=2, requires=_NUMBERS, rules_out=_OUT),
    Check(training.ranks_stay_identical, wrapping.plain, requires=_NUMBERS, rules_out=_OUT),
    Check(precision.trains_in_float32, wrapping.in_float32, requires=_NUMBERS, rules_out=_SEEN),
    Check(precision.trains_in_bfloat16, wrapping.in_bfloat16, requires=_NUMBERS, rules_out=_SEEN),
    Check(precision.mixed_dtypes, wrapping.in_mixed_dtypes, requires=_NUMBERS, rules_out=_SEEN),
    Check(training.frozen_parameters_stay, wrapping.with_frozen, requires=_NUMBERS, rules_out=_OUT),
    Check(training.tied_parameters, wrapping.with_tied, requires=_NUMBERS, rules_out=_OUT),
    Check(training.scalar_parameter, wrapping.with_scale, requires=_NUMBERS, rules_out=_OUT),
    Check(training.non_contiguous_parameter, wrapping.with_transposed, requires=_NUMBERS, rules_out=_OUT),
    Check(training.convolution, wrapping.with_convolution, requires=_NUMBERS, rules_out=_OUT),
    Check(training.layers_of_other_kinds, wrapping.of_other_layers, requires=_NUMBERS, rules_out=_OUT),
    Check(training.gradient_clipping, wrapping.clipping, requires=_NUMBERS, rules_out=_OUT),
    Check(training.evaluation_between_steps, wrapping.evaluating, requires=_NUMBERS, rules_out=_OUT),
    Check(training.uneven_batches, wrapping.uneven, requires=_NUMBERS, rules_out=_OUT),
    Check(training.zero_grad_in_place, wrapping.keeping_gradients, requires=_NUMBERS, rules_out=_OUT),
    Check(training.forward_keywords, wrapping.with_keyword, requires=_NUMBERS, rules_out=_OUT),
)
_OVERLAP = Check(communication.overlaps_backward, wrapping.deep, points=2, requires=_NUMBERS, shows="overlap")
_STARTS = Check(communication.starts_in_backward, wrapping.deep, points=2, requires=_NUMBERS, shows="overlap")
_ONCE = Check(traffic.gradients_travel_once, wrapping.deep_and_broad, requires=_NUMBERS, shows="volume")
_FLAT = (
    Check(traffic.one_collective_per_dtype, wrapping.deep, points=2, requires=_NUMBERS, shows="collectives"),
    Check(
        traffic.as_many_collectives_as_dtypes,
        wrapping.in_two_dtypes,
        requires=("mixed_dtypes", "one_collective_per_dtype"),
        shows="collectives",
    ),
)
_EACH = Check(traffic.one_collective_per_parameter, wrapping.deep, requires=("overlaps_backward",), shows="collectives")
_BUCKETS = (
    Check(traffic.bucket_size_respected, wrapping.with_bucket_size, requires=_SENT_ONCE, shows="collectives"),
    Check(traffic.unbounded_bucket, wrapping.with_one_bucket, requires=_NUMBERS, shows="collectives"),
)
_WRAPPER_EXTENDED = (
    Check(communication.work_does_not_grow, beyond.lasting, "extended", requires=_NUMBERS, shows="growth"),
    Check(communication.memory_does_not_grow, beyond.lasting, "extended", requires=_NUMBERS, shows="growth"),
    Check(extended.wrapping_makes_no_gradients, wrapping.plain, "extended", requires=_RUNS, shows="early_gradients"),
    Check(extended.mode_reaches_the_model, wrapping.evaluating, "extended", requires=_NUMBERS, shows="modes"),
    Check(extended.two_models_side_by_side, beyond.beside_a_twin, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.buffers_broadcast, beyond.with_buffers, "extended", requires=("initial_broadcast",), shows="buffers"
    ),
    Check(
        extended.gradient_order_differs,
        beyond.with_branch("order_by_rank"),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(extended.freezing_after_wrapping, beyond.freezing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.unused_on_some_ranks,
        beyond.with_branch("used_on_rank_0"),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(extended.unused_everywhere, beyond.with_branch("unused"), "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.unfreezing_after_wrapping, beyond.unfreezing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        traffic.everything_frozen,
        beyond.freezing_everything,
        "extended",
        requires=("freezing_after_wrapping",),
        shows="collectives",
    ),
    Check(extended.empty_parameter, beyond.with_empty, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.nested_arguments, beyond.with_nested, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.accumulates_gradients, beyond.accumulating, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.several_forwards_one_backward, beyond.joining, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.recomputed_activations, beyond.recomputing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.recovers_from_an_exception, beyond.aborting, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.accumulates_without_synchronising,
        beyond.accumulating_lazily,
        "extended",
        requires=("accumulates_gradients",),
        rules_out=_OUT,
    ),
    Check(extended.sparse_gradients, beyond.with_sparse_gradients, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.complex_parameter, beyond.with_complex_numbers, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.range_of_float16,
        beyond.at_the_end_of_float16,
        "extended",
        requires=("frozen_parameters_stay",),
        rules_out=_OUT,
    ),
    Check(
        extended.no_sync_ends_with_an_exception,
        beyond.aborting_lazily,
        "extended",
        requires=("accumulates_without_synchronising", "recovers_from_an_exception"),
        rules_out=_OUT,
    ),
    Check(
        extended.loaded_weights_are_trained,
        beyond.loading,
        "extended",
        requires=_NUMBERS,
        rules_out=(*_OUT, "loaded weights not used"),
    ),
)

_BASE = ("equals_unsharded_optimizer",)
_STILL = ("never trained",)
_RESUMED = ("state_dict_round_trip",)
_IGNORED = ("change of an option ignored",)
_OPTIMIZER = (
    Check(training.runs_to_the_end, stepping.optimized, rules_out=_STILL),
    Check(communication.results_are_waited_for, stepping.optimized_gated, requires=_RUNS, shows="waits"),
    Check(optimizer.one_rank_optimizer, stepping.optimized_on_one_rank, requires=_RUNS, rules_out=_STILL),
    Check(optimizer.equals_unsharded_optimizer, stepping.optimized, points=2, requires=_WAITED, rules_out=_STILL),
    Check(precision.trains_in_float32, stepping.optimized_in_float32, requires=_BASE, rules_out=_STILL),
    Check(precision.trains_in_bfloat16, stepping.optimized_in_bfloat16, requires=_BASE, rules_out=_STILL),
    Check(optimizer.any_torch_optimizer, stepping.optimized_in_another_way, requires=_BASE, rules_out=_STILL),
    Check(optimizer.convolution, stepping.optimized_with_convolution, requires=_BASE, rules_out=_STILL),
    Check(optimizer.clipped_gradients, stepping.optimized_clipped, requires=_BASE, rules_out=_STILL),
    Check(
        optimizer.param_groups_keep_options,
        stepping.with_groups,
        points=2,
        requires=_BASE,
        rules_out=("first group's options everywhere", "options of groups ignored"),
    ),
    Check(
        optimizer.groups_smaller_than_the_world,
        stepping.with_small_group,
        requires=("param_groups_keep_options",),
        rules_out=("first group's options everywhere", "options of groups ignored"),
    ),
    Check(
        optimizer.add_param_group_before_training,
        changing.adding_group(before_training=True),
        requires=_BASE,
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        optimizer.add_param_group_during_training,
        changing.adding_group(before_training=False),
        points=2,
        requires=(*_BASE, "add_param_group_before_training"),
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(optimizer.lr_through_param_groups, changing.changing_lr, requires=_BASE, rules_out=_IGNORED),
    Check(
        optimizer.options_through_param_groups,
        changing.changing_another_option,
        requires=("lr_through_param_groups",),
        rules_out=_IGNORED,
    ),
    Check(
        optimizer.changes_in_one_group,
        changing.changing_one_group,
        requires=("param_groups_keep_options", "lr_through_param_groups"),
        rules_out=(*_IGNORED, "change of one group made in all"),
    ),
    Check(optimizer.lr_through_scheduler, changing.with_scheduler, requires=_BASE, rules_out=_IGNORED),
    Check(optimizer.closure, stepping.with_closure, requires=_BASE, shows="closure", rules_out=_STILL),
    Check(optimizer.zero_grad_clears_all, stepping.clearing, requires=_BASE, shows="zero_grad"),
    Check(optimizer.frozen_parameters_in_groups, stepping.optimized_frozen, requires=_BASE, rules_out=_STILL),
    Check(optimizer.state_is_sharded, stepping.with_state, points=2, requires=_BASE, shows="state"),
    Check(
        optimizer.state_is_balanced, stepping.with_large_weights, requires=(*_BASE, "state_is_sharded"), shows="state"
    ),
    Check(optimizer.more_ranks_than_parameters, stepping.with_more_ranks, requires=_BASE, rules_out=_STILL),
    Check(
        optimizer.beside_data_parallel,
        stepping.beside_wrapper,
        requires=(*_BASE, "zero_grad_clears_all"),
        rules_out=_OUT,
    ),
    Check(communication.work_does_not_grow, stepping.optimized_lasting, "extended", requires=_BASE, shows="growth"),
    Check(communication.memory_does_not_grow, stepping.optimized_lasting, "extended", requires=_BASE, shows="growth"),
    Check(
        optimizer.zero_grad_keeps_tensors,
        stepping.clearing_in_place,
        "extended",
        requires=("zero_grad_clears_all",),
        shows="dropped",
    ),
    Check(optimizer.parameters_keep_their_memory, stepping.optimized, "extended", requires=_BASE, shows="moved"),
    Check(
        optimizer.parameters_of_any_shape,
        stepping.optimized_of_any_shape,
        "extended",
        requires=_BASE,
        rules_out=_STILL,
    ),
    Check(precision.mixed_dtypes, stepping.optimized_in_mixed_dtypes, "extended", requires=_BASE, rules_out=_STILL),
    Check(
        optimizer.groups_of_generators,
        changing.adding_generators,
        "extended",
        requires=("add_param_group_before_training",),
        rules_out=("added group never trained",),
    ),
    Check(
        optimizer.loaded_weights_are_the_start,
        changing.loading_weights,
        "extended",
        requires=_BASE,
        rules_out=(*_STILL, "loaded weights not used"),
    ),
    Check(
        optimizer.options_through_scheduler,
        changing.with_one_cycle,
        "extended",
        requires=("options_through_param_groups", "lr_through_scheduler"),
        rules_out=(*_IGNORED, "only changes of lr take effect"),
    ),
    Check(
        optimizer.unfreezing_in_groups,
        changing.optimized_unfreezing,
        "extended",
        requires=("frozen_parameters_in_groups",),
        rules_out=("unfrozen parameter never trained",),
    ),
    Check(
        traffic.parameters_travel_once,
        stepping.with_broad_groups,
        "extended",
        requires=("param_groups_keep_options",),
        shows="volume",
    ),
    Check(
        optimizer.state_dict_round_trip,
        changing.saving_and_loading,
        "extended",
        requires=_BASE,
        rules_out=("state lost",),
    ),
    Check(
        optimizer.options_survive_loading,
        changing.loading_changed_options,
        "extended",
        requires=_RESUMED,
        rules_out=("saved options lost",),
    ),
    Check(
        optimizer.options_change_after_loading,
        changing.changing_options_after_loading,
        "extended",
        requires=_RESUMED,
        rules_out=_IGNORED,
    ),
    Check(
        optimizer.loading_leaves_the_state_dict,
        changing.saving_and_loading,
        "extended",
        requires=_RESUMED,
        shows="altered",
    ),
)

_STRUCTURE: dict[str, tuple[Check, ...]] = {
    "naive_ddp": (replace(_ONCE, level="extended"),),
    "flat_ddp": (*_FLAT, _ONCE),
    "ddp_individual_parameters": (_OVERLAP, _EACH, _ONCE),
    "ddp_bucketed": (_OVERLAP, _ONCE, *_BUCKETS),
    "ddp": (_STARTS, _ONCE),
}


def _checks(component: Component) -> tuple[Check, ...]:
    if component.kind == "wrapper":
        return (*_WRAPPER_CORE, *_STRUCTURE[component.name], *_WRAPPER_EXTENDED)
    return _OPTIMIZER if component.kind == "optimizer" else LOOP_CHECKS[component.name]


CHECKS = {name: _checks(component) for name, component in COMPONENTS.items()}
