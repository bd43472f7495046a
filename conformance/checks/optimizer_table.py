"""Which checks sharded optimizers are held to, in the order in which they run."""

from conformance.checks import communication, optimizer, optimizer_state, param_groups, precision, traffic, training
from conformance.checks.check import UNSYNCHRONISED, Check
from conformance.scenario import SaveAndLoad
from conformance.strategies import changing
from conformance.strategies import groups as grouping
from conformance.strategies import optimizer as stepping
from conformance.strategies.mixed import groups_and_changes
from conformance.strategies.parts import having

_OUT = (UNSYNCHRONISED,)
_RUNS = ("runs_to_the_end",)
_WAITED = ("results_are_waited_for",)
_BASE = ("equals_unsharded_optimizer",)
_STILL = ("never trained",)
_RESUMED = ("state_dict_round_trip",)
_IGNORED = ("change of an option ignored",)
_UNCLIPPED = ("gradients of before clipping",)
OPTIMIZER_CHECKS = (
    Check(training.runs_to_the_end, stepping.optimized, rules_out=_STILL),
    Check(communication.results_are_waited_for, having(stepping.optimized, gated=True), requires=_RUNS, shows="waits"),
    Check(optimizer.one_rank_optimizer, stepping.optimized_on_one_rank, requires=_RUNS, rules_out=_STILL),
    Check(optimizer.equals_unsharded_optimizer, stepping.optimized, points=2, requires=_WAITED, rules_out=_STILL),
    Check(precision.trains_in_float32, stepping.optimized_in_float32, requires=_BASE, rules_out=_STILL),
    Check(precision.trains_in_bfloat16, stepping.optimized_in_bfloat16, requires=_BASE, rules_out=_STILL),
    Check(optimizer.any_torch_optimizer, stepping.optimized_in_another_way, requires=_BASE, rules_out=_STILL),
    Check(optimizer.convolution, stepping.optimized_with_convolution, requires=_BASE, rules_out=_STILL),
    Check(optimizer.clipped_gradients, stepping.optimized_clipped, requires=_BASE, rules_out=_UNCLIPPED),
    Check(optimizer.more_ranks_than_parameters, stepping.with_more_ranks, requires=_BASE, rules_out=_STILL),
    Check(
        param_groups.param_groups_keep_options,
        grouping.with_groups,
        points=2,
        requires=_BASE,
        rules_out=("first group's options everywhere", "options of groups ignored"),
    ),
    Check(
        param_groups.groups_are_waited_for,
        having(grouping.with_groups, gated=True),
        requires=("param_groups_keep_options",),
        shows="waits",
    ),
    Check(
        param_groups.groups_smaller_than_the_world,
        grouping.with_small_group,
        requires=("param_groups_keep_options",),
        rules_out=("first group's options everywhere", "options of groups ignored"),
    ),
    Check(
        param_groups.add_param_group_before_training,
        changing.adding_group(before_training=True),
        requires=_BASE,
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        param_groups.add_param_group_during_training,
        changing.adding_group(before_training=False),
        points=2,
        requires=(*_BASE, "add_param_group_before_training"),
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        param_groups.added_groups_take_the_defaults,
        changing.adding_group_without_options,
        requires=("param_groups_keep_options", "add_param_group_during_training"),
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
        param_groups.changes_in_one_group,
        changing.changing_one_group,
        requires=("param_groups_keep_options", "lr_through_param_groups"),
        rules_out=(*_IGNORED, "change of one group made in all"),
    ),
    Check(optimizer.lr_through_scheduler, changing.with_scheduler, requires=_BASE, rules_out=_IGNORED),
    Check(optimizer.closure, stepping.with_closure, requires=_BASE, shows="closure", rules_out=_STILL),
    Check(
        optimizer.closure_on_ranks_without_parameters,
        stepping.with_closure_for_one_parameter,
        requires=("closure", "more_ranks_than_parameters"),
        shows="closure",
        rules_out=_STILL,
    ),
    Check(optimizer.zero_grad_clears_all, stepping.clearing, requires=_BASE, shows="zero_grad"),
    Check(
        optimizer.zero_grad_clears_added_groups,
        changing.clearing_added_group,
        requires=("add_param_group_before_training", "zero_grad_clears_all"),
        shows="zero_grad",
    ),
    Check(
        param_groups.groups_and_changes_together,
        groups_and_changes,
        requires=(
            "changes_in_one_group",
            "add_param_group_during_training",
            "lr_through_scheduler",
            "closure",
            "clipped_gradients",
        ),
        rules_out=(*_IGNORED, "added group never trained", "first group's options everywhere", "state lost"),
    ),
    Check(optimizer_state.state_is_sharded, stepping.with_state, points=2, requires=_BASE, shows="state"),
    Check(
        optimizer_state.groups_are_sharded,
        grouping.with_state_of_groups,
        requires=("state_is_sharded", "param_groups_keep_options", "add_param_group_during_training"),
        shows="state",
    ),
    Check(
        optimizer_state.state_is_balanced,
        stepping.with_large_weights,
        requires=(*_BASE, "state_is_sharded"),
        shows="state",
    ),
    Check(
        optimizer.beside_data_parallel,
        stepping.beside_wrapper,
        requires=(*_BASE, "zero_grad_clears_all"),
        rules_out=_OUT,
    ),
    Check(
        optimizer.frozen_parameters_in_groups, stepping.optimized_frozen, "extended", requires=_BASE, rules_out=_STILL
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
        optimizer.two_optimizers_side_by_side,
        having(stepping.optimized, twins=True),
        "extended",
        requires=_BASE,
        rules_out=_STILL,
    ),
    Check(
        param_groups.small_groups_are_added,
        changing.adding_small_group,
        "extended",
        requires=("add_param_group_during_training", "groups_smaller_than_the_world", "more_ranks_than_parameters"),
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        param_groups.groups_may_have_names,
        grouping.with_named_groups,
        "extended",
        requires=("param_groups_keep_options",),
        rules_out=_STILL,
    ),
    Check(
        param_groups.groups_of_generators,
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
        grouping.with_broad_groups,
        "extended",
        requires=("param_groups_keep_options",),
        shows="volume",
    ),
    Check(
        optimizer.state_dict_round_trip,
        changing.saving_and_loading,
        "extended",
        requires=_BASE,
        rules_out=("saved state lost",),
    ),
    Check(
        optimizer_state.state_stays_sharded_after_loading,
        having(stepping.with_state, steps=2, schedule=(SaveAndLoad(1),)),
        "extended",
        requires=(*_RESUMED, "state_is_sharded"),
        shows="state",
    ),
    Check(
        optimizer_state.state_of_ranks_without_parameters,
        changing.saving_one_parameter,
        "extended",
        requires=(*_RESUMED, "more_ranks_than_parameters"),
        rules_out=("saved state lost",),
    ),
    Check(
        optimizer.options_survive_loading,
        changing.loading_changed_options,
        "extended",
        requires=(*_RESUMED, "groups_smaller_than_the_world"),
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
    Check(
        optimizer_state.groups_are_balanced_together,
        grouping.with_large_weights_in_groups,
        "extended",
        requires=("state_is_balanced", "groups_smaller_than_the_world"),
        shows="state",
    ),
    Check(
        param_groups.changes_in_an_added_group,
        changing.changing_added_group,
        "extended",
        requires=("add_param_group_during_training", "changes_in_one_group"),
        rules_out=_IGNORED,
    ),
    Check(optimizer.unused_parameters, stepping.optimized_unused, "extended", requires=_BASE, rules_out=_STILL),
    Check(
        optimizer.large_parameters,
        stepping.optimized_large,
        "extended",
        requires=("trains_in_float32",),
        rules_out=_STILL,
    ),
    Check(param_groups.param_groups_hold_all, stepping.optimized, "extended", requires=_BASE, shows="unlisted"),
    Check(optimizer.saving_changes_nothing, changing.saving, "extended", requires=_RESUMED),
)
