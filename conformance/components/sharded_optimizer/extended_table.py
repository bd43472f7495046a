"""The extended checks of sharded optimizers, in the order in which they run."""

from functools import partial

from conformance.checks.check import Check
from conformance.checks.precision import trains_in_two_dtypes
from conformance.checks.steps import nothing_grows
from conformance.checks.traffic import sent_once
from conformance.checks.training import trains
from conformance.checks.words import TWO_MACHINES
from conformance.components.sharded_optimizer import assertions
from conformance.scenarios.scenario import SaveAndLoad
from conformance.strategies import optimizer as draws
from conformance.strategies import optimizer_changes as changes
from conformance.strategies import param_groups as groups
from conformance.strategies.building_blocks import having, one_of

BASE, _SAVED = ("training_equals_one_process",), ("state_dict[round_trip]",)
STILL, IGNORED = ("never trained",), ("change of an option ignored",)  # known mistakes
NEW_GROUP = ("added group never trained", "first group's options everywhere")
_check = partial(Check, level="extended", requires=BASE)
_train = partial(_check, assertion=trains, rules_out=STILL)
_of_kinds = partial(_train, theme="kinds of parameters and layers")
_with_options = partial(_train, theme="options and groups")
_saved = partial(_train, theme="saving and loading", requires=_SAVED)
# fmt: off
EXTENDED = (
    _of_kinds("trains[frozen_parameters]",
        "Parameters that do not require gradients may be in the optimizer; they stay, and the others train.",
        draws.optimized_frozen),
    _of_kinds("trains[parameters_of_any_shape]",
        "Parameters without dimensions or elements, shared ones, and ones that are not contiguous train like others.",
        draws.optimized_of_any_shape),
    _of_kinds("trains[float64]", "A model in float64 trains to the precision of float64.", draws.optimized, exact=True,
        theme="precision"),
    _of_kinds("trains[mixed_dtypes]", "A model with parameters of two dtypes trains like any other.",
        draws.optimized_in_mixed_dtypes, assertion=trains_in_two_dtypes, theme="precision"),
    _of_kinds("trains[large_parameters]",
        "Parameters of 1 MiB and more train to the last element, and reach every rank.", draws.optimized_large,
        requires=("trains[float32]",),
        advice="Three parameters here have 1 MiB or more. Is there a limit to what is sent at once, or a remainder "
        "that is lost where something is sent in pieces?"),
    _of_kinds("trains[unused_parameters]",
        "A parameter that requires a gradient and has none is left as it is: no weight decay, no momentum.",
        draws.optimized_unused, theme="parameters that take part",
        advice="Here a parameter has no gradient in some steps: skip it there, as torch's optimizers do."),
    _of_kinds("trains[unfreezing_later]",
        "A parameter that begins to train later is updated from then on; one that is frozen later is not.",
        changes.optimized_unfreezing, theme="parameters that take part", requires=("trains[frozen_parameters]",),
        rules_out=("unfrozen parameter never trained",)),
    _with_options("groups[small_ones_added]",
        "An added group may be smaller than the world, and may hold the first parameters that a rank owns.",
        changes.adding_small_group, requires=("groups[added_during_training]", "groups[smaller_than_the_world]",
            "trains[fewer_parameters_than_ranks]"), rules_out=NEW_GROUP),
    _with_options("groups[other_kinds]",
        "A parameter group may have a name, may be empty, and may come as a generator such as `module.parameters()`.",
        one_of(groups.with_named_groups, groups.with_empty_group, *changes.FROM_GENERATORS),
        requires=("groups[own_options]", "groups[added_before_training]")),
    _with_options("options[one_cycle]",
        "A scheduler that moves momentum or betas besides the learning rate (`OneCycleLR`) works on the optimizer.",
        changes.with_one_cycle, requires=("options[others]", "options[scheduler]"),
        rules_out=(*IGNORED, "only changes of lr take effect")),
    _with_options("options[added_group]",
        "A learning rate written to `param_groups` takes effect in added groups, and is no default of later groups.",
        changes.changing_added_group, requires=("groups[added_during_training]", "options[one_group]"),
        rules_out=IGNORED),
    _check("param_groups_hold_all",
        "On every rank, `optimizer.param_groups` holds all parameters, not only those that the rank owns.",
        draws.optimized, assertions.param_groups_hold_all, "options and groups"),
    _check("zero_grad[keeps_tensors]",
        "`zero_grad(set_to_none=False)` leaves gradients of zeros, as in any torch optimizer, and not None.",
        having(draws.clearing, set_to_none=False), assertions.zero_grad_keeps_tensors, "use of the model",
        requires=("zero_grad",)),
    _check("parameters_keep_their_memory",
        "A step writes new values into the parameters' memory, of which there may be views, and does not replace it.",
        draws.optimized, assertions.parameters_keep_their_memory, "use of the model"),
    _train("two_side_by_side", "Two sharded optimizers, each with parameters of its own, do not affect one another.",
        having(draws.optimized, twins=True), theme="use of the model",
        advice="Another optimizer was made, and steps between. Keep what belongs to one optimizer in that object, not "
        "in its class or in a global of the module."),
    _train("overflow_reaches_every_rank",
        "Where one gradient is infinite on all ranks, a gradient scaler skips the step on all, and later ones train.",
        draws.scaled, theme="robustness", rules_out=STILL,
        advice="The steps go through a `GradScaler`. It looks for infinite gradients in `optimizer.param_groups`: with "
        "other parameters on each rank, one rank skips a step that others wait in. Give all of them to "
        "`Optimizer.__init__`."),
    _check("nothing_grows",
        "Later steps launch no more collectives and keep no more tensors and handles alive than the second one.",
        draws.lasting, nothing_grows, "robustness"),
    _check("sent_once", "A step of the optimizer sends each parameter once, however many groups and ranks there are.",
        groups.with_broad_groups, sent_once, "communication", requires=("groups[own_options]",)),
    _train("on_two_machines", "On two machines, each parameter has one owner among all ranks.",
        having(draws.optimized, two_machines=True), theme="robustness", advice=TWO_MACHINES),
    _saved("trains[loaded_weights]", "The next step starts from weights that the model has loaded between two steps.",
        changes.loading_weights, requires=BASE, rules_out=(*STILL, "loaded weights not used")),
    _saved("state_dict[round_trip]",
        "A new optimizer that loads `state_dict` goes on as the old one, also on ranks that own no parameter.",
        one_of(changes.saving_and_loading, draws.with_one_parameter(changes.saving_and_loading)),
        requires=(*BASE, "trains[fewer_parameters_than_ranks]"), rules_out=("saved state lost",)),
    _saved("state_dict[options]",
        "A new optimizer that loads `state_dict` goes on with the options that were saved, not with its own.",
        changes.loading_changed_options, requires=(*_SAVED, "groups[smaller_than_the_world]"),
        rules_out=("saved options lost",)),
    _saved("options[after_loading]",
        "After `load_state_dict`, an option written to `optimizer.param_groups` takes effect at the next step.",
        changes.changing_options_after_loading, rules_out=IGNORED),
    _saved("groups[added_after_loading]",
        "A group may be added to an optimizer that has loaded a state, and trains once in each step, like any other.",
        changes.adding_group_after_loading, requires=(*_SAVED, "groups[added_during_training]"),
        rules_out=("added group never trained", "saved state lost")),
    _saved("saving_changes_nothing", "Taking `state_dict` changes nothing: training goes on as without it.",
        changes.saving, rules_out=(),
        advice="`state_dict` was called before: build it from copies, and leave `param_groups` and `state` alone."),
    _saved("arguments_stay", "`load_state_dict` changes nothing in its argument, which may be loaded again.",
        changes.saving_and_loading, assertion=assertions.loading_leaves_the_state_dict, rules_out=()),
    _saved("state_dict[other_keys]",
        "After loading, `param_groups` have all keys that they had, also ones that are no options, as a scheduler's.",
        changes.saving_what_others_keep_there, assertion=assertions.other_keys_survive_loading,
        requires=("state_dict[options]",), rules_out=()),
    _check("state_is_sharded[after_loading]",
        "An optimizer that has loaded a `state_dict` keeps the state of the parameters that the rank owns, no more.",
        having(draws.with_state, steps=2, schedule=(SaveAndLoad(1),)), assertions.state_is_sharded, "memory and state",
        requires=(*_SAVED, "state_is_sharded"),
        advice="Keep of a `state_dict` what belongs to the rank's own parameters, and drop the rest."),
    _check("state_is_balanced[frozen_or_in_groups]",
        "State is balanced where half of the parameters were frozen at first, and over many groups together.",
        one_of(draws.with_large_weights_unfrozen, groups.with_large_weights_in_groups), assertions.state_is_balanced,
        "memory and state",
        requires=("state_is_balanced", "trains[unfreezing_later]", "groups[smaller_than_the_world]"),
        advice="There are frozen parameters or several groups here. Deal out frozen parameters like the others, and "
        "carry on, from one group to the next, with the bytes that each rank has so far: where each group is dealt "
        "out from rank 0 anew, rank 0 gets the largest of every group."),
)
