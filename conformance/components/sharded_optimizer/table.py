"""Which checks sharded optimizers are held to, in the order in which they run."""

from conformance.checks import communication, precision, training
from conformance.checks.check import UNSYNCHRONISED, Check
from conformance.components.sharded_optimizer import checks, param_groups, state
from conformance.components.sharded_optimizer.extended_table import OPTIMIZER_EXTENDED
from conformance.strategies import optimizer as stepping
from conformance.strategies import optimizer_changes
from conformance.strategies import param_groups as grouping
from conformance.strategies.building_blocks import having
from conformance.strategies.combined import groups_and_changes

_OUT = (UNSYNCHRONISED,)
_RUNS = ("runs_to_the_end",)
_WAITED = ("results_are_waited_for",)
_BASE = ("equals_unsharded_optimizer",)
_STILL = ("never trained",)
_IGNORED = ("change of an option ignored",)
_UNCLIPPED = ("gradients of before clipping",)
CHECKS = (
    Check(training.runs_to_the_end, stepping.optimized, rules_out=_STILL),
    Check(communication.results_are_waited_for, having(stepping.optimized, gated=True), requires=_RUNS, shows="waits"),
    Check(checks.one_rank_optimizer, stepping.optimized_on_one_rank, requires=_RUNS, rules_out=_STILL),
    Check(checks.equals_unsharded_optimizer, stepping.optimized, points=2, requires=_WAITED, rules_out=_STILL),
    Check(precision.trains_in_float32, stepping.optimized_in_float32, requires=_BASE, rules_out=_STILL),
    Check(precision.trains_in_bfloat16, stepping.optimized_in_bfloat16, requires=_BASE, rules_out=_STILL),
    Check(checks.any_torch_optimizer, stepping.optimized_in_another_way, requires=_BASE, rules_out=_STILL),
    Check(checks.convolution, stepping.optimized_with_convolution, requires=_BASE, rules_out=_STILL),
    Check(checks.clipped_gradients, stepping.optimized_clipped, requires=_BASE, rules_out=_UNCLIPPED),
    Check(checks.more_ranks_than_parameters, stepping.with_more_ranks, requires=_BASE, rules_out=_STILL),
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
        optimizer_changes.adding_group(before_training=True),
        requires=_BASE,
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        param_groups.add_param_group_during_training,
        optimizer_changes.adding_group(before_training=False),
        points=2,
        requires=(*_BASE, "add_param_group_before_training"),
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(
        param_groups.added_groups_take_the_defaults,
        optimizer_changes.adding_group_without_options,
        requires=("param_groups_keep_options", "add_param_group_during_training"),
        rules_out=("added group never trained", "first group's options everywhere"),
    ),
    Check(checks.lr_through_param_groups, optimizer_changes.changing_lr, requires=_BASE, rules_out=_IGNORED),
    Check(
        checks.options_through_param_groups,
        optimizer_changes.changing_another_option,
        requires=("lr_through_param_groups",),
        rules_out=_IGNORED,
    ),
    Check(
        param_groups.changes_in_one_group,
        optimizer_changes.changing_one_group,
        requires=("param_groups_keep_options", "lr_through_param_groups"),
        rules_out=(*_IGNORED, "change of one group made in all"),
    ),
    Check(checks.lr_through_scheduler, optimizer_changes.with_scheduler, requires=_BASE, rules_out=_IGNORED),
    Check(checks.closure, stepping.with_closure, requires=_BASE, shows="closure", rules_out=_STILL),
    Check(
        checks.closure_on_ranks_without_parameters,
        stepping.with_closure_for_one_parameter,
        requires=("closure", "more_ranks_than_parameters"),
        shows="closure",
        rules_out=_STILL,
    ),
    Check(checks.zero_grad_clears_all, stepping.clearing, requires=_BASE, shows="zero_grad"),
    Check(
        checks.zero_grad_clears_added_groups,
        optimizer_changes.clearing_added_group,
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
    Check(state.state_is_sharded, stepping.with_state, points=2, requires=_BASE, shows="state"),
    Check(
        state.groups_are_sharded,
        grouping.with_state_of_groups,
        requires=("state_is_sharded", "param_groups_keep_options", "add_param_group_during_training"),
        shows="state",
    ),
    Check(
        state.state_is_balanced,
        stepping.with_large_weights,
        requires=(*_BASE, "state_is_sharded"),
        shows="state",
    ),
    Check(
        checks.beside_data_parallel,
        stepping.beside_wrapper,
        requires=(*_BASE, "zero_grad_clears_all"),
        rules_out=_OUT,
    ),
    Check(
        checks.closure_beside_data_parallel,
        stepping.beside_wrapper_with_closure,
        requires=("closure", "beside_data_parallel"),
        shows="closure",
        rules_out=_OUT,
    ),
    Check(
        state.two_groups_are_balanced,
        stepping.with_large_weights_in_two_groups,
        requires=("state_is_balanced", "groups_are_sharded"),
        shows="state",
    ),
    *OPTIMIZER_EXTENDED,
)
