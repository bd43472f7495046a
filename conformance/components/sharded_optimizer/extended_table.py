"""Which checks sharded optimizers are held to beyond the core, in the order in which they run."""

from conformance.checks import communication, multi_node, precision, traffic
from conformance.checks.check import Check
from conformance.components.sharded_optimizer import checks, param_groups, state
from conformance.scenarios.scenario import SaveAndLoad
from conformance.strategies import optimizer as stepping
from conformance.strategies import optimizer_changes
from conformance.strategies import param_groups as grouping
from conformance.strategies.building_blocks import having

_BASE = ("equals_unsharded_optimizer",)
_STILL = ("never trained",)
_RESUMED = ("state_dict_round_trip",)
_IGNORED = ("change of an option ignored",)
OPTIMIZER_EXTENDED = (
    Check(checks.frozen_parameters_in_groups, stepping.optimized_frozen, "extended", requires=_BASE, rules_out=_STILL),
    Check(communication.work_does_not_grow, stepping.optimized_lasting, "extended", requires=_BASE, shows="growth"),
    Check(communication.memory_does_not_grow, stepping.optimized_lasting, "extended", requires=_BASE, shows="growth"),
    Check(
        checks.zero_grad_keeps_tensors,
        stepping.clearing_in_place,
        "extended",
        requires=("zero_grad_clears_all",),
        shows="dropped",
    ),
    Check(checks.parameters_keep_their_memory, stepping.optimized, "extended", requires=_BASE, shows="moved"),
    Check(
        checks.parameters_of_any_shape,
        stepping.optimized_of_any_shape,
        "extended",
        requires=_BASE,
        rules_out=_STILL,
    ),
    Check(precision.mixed_dtypes, stepping.optimized_in_mixed_dtypes, "extended", requires=_BASE, rules_out=_STILL),
    Check(
        checks.two_optimizers_side_by_side,
        having(stepping.optimized, twins=True),
        "extended",
        requires=_BASE,
        rules_out=_STILL,
    ),
    Check(
        param_groups.small_groups_are_added,
        optimizer_changes.adding_small_group,
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
        param_groups.groups_may_be_empty,
        grouping.with_empty_group,
        "extended",
        requires=("param_groups_keep_options",),
        rules_out=_STILL,
    ),
    Check(
        param_groups.groups_of_generators,
        optimizer_changes.adding_generators,
        "extended",
        requires=("add_param_group_before_training",),
        rules_out=("added group never trained",),
    ),
    Check(
        checks.loaded_weights_are_the_start,
        optimizer_changes.loading_weights,
        "extended",
        requires=_BASE,
        rules_out=(*_STILL, "loaded weights not used"),
    ),
    Check(
        checks.options_through_scheduler,
        optimizer_changes.with_one_cycle,
        "extended",
        requires=("options_through_param_groups", "lr_through_scheduler"),
        rules_out=(*_IGNORED, "only changes of lr take effect"),
    ),
    Check(
        checks.unfreezing_in_groups,
        optimizer_changes.optimized_unfreezing,
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
        checks.state_dict_round_trip,
        optimizer_changes.saving_and_loading,
        "extended",
        requires=_BASE,
        rules_out=("saved state lost",),
    ),
    Check(
        state.state_stays_sharded_after_loading,
        having(stepping.with_state, steps=2, schedule=(SaveAndLoad(1),)),
        "extended",
        requires=(*_RESUMED, "state_is_sharded"),
        shows="state",
    ),
    Check(
        state.state_of_ranks_without_parameters,
        optimizer_changes.saving_one_parameter,
        "extended",
        requires=(*_RESUMED, "more_ranks_than_parameters"),
        rules_out=("saved state lost",),
    ),
    Check(
        checks.options_survive_loading,
        optimizer_changes.loading_changed_options,
        "extended",
        requires=(*_RESUMED, "groups_smaller_than_the_world"),
        rules_out=("saved options lost",),
    ),
    Check(
        checks.options_change_after_loading,
        optimizer_changes.changing_options_after_loading,
        "extended",
        requires=_RESUMED,
        rules_out=_IGNORED,
    ),
    Check(
        param_groups.groups_are_added_after_loading,
        optimizer_changes.adding_group_after_loading,
        "extended",
        requires=(*_RESUMED, "add_param_group_during_training"),
        rules_out=("added group never trained", "saved state lost"),
    ),
    Check(
        checks.loading_leaves_the_state_dict,
        optimizer_changes.saving_and_loading,
        "extended",
        requires=_RESUMED,
        shows="altered",
    ),
    Check(
        checks.loading_keeps_what_others_keep_there,
        optimizer_changes.saving_what_others_keep_there,
        "extended",
        requires=("options_survive_loading",),
        shows="lost",
    ),
    Check(
        state.unfrozen_parameters_are_balanced,
        stepping.with_large_weights_unfrozen,
        "extended",
        requires=("state_is_balanced", "unfreezing_in_groups"),
        shows="state",
    ),
    Check(
        state.groups_are_balanced_together,
        grouping.with_large_weights_in_groups,
        "extended",
        requires=("state_is_balanced", "groups_smaller_than_the_world"),
        shows="state",
    ),
    Check(
        param_groups.changes_in_an_added_group,
        optimizer_changes.changing_added_group,
        "extended",
        requires=("add_param_group_during_training", "changes_in_one_group"),
        rules_out=_IGNORED,
    ),
    Check(checks.unused_parameters, stepping.optimized_unused, "extended", requires=_BASE, rules_out=_STILL),
    Check(
        checks.large_parameters,
        stepping.optimized_large,
        "extended",
        requires=("trains_in_float32",),
        rules_out=_STILL,
    ),
    Check(param_groups.param_groups_hold_all, stepping.optimized, "extended", requires=_BASE, shows="unlisted"),
    Check(checks.saving_changes_nothing, optimizer_changes.saving, "extended", requires=_RESUMED),
    Check(
        multi_node.steps_on_two_machines,
        having(stepping.optimized, two_machines=True),
        "extended",
        requires=_BASE,
        rules_out=_STILL,
    ),
)
