"""The component `sharded_optimizer`: its checks in the order in which they run, and its record."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.steps import results_are_waited_for
from conformance.checks.training import runs_to_the_end, trains
from conformance.components.component import Component, training_numbers
from conformance.components.sharded_optimizer import assertions
from conformance.components.sharded_optimizer.extended_table import BASE, EXTENDED, IGNORED, NEW_GROUP, STILL
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.strategies import optimizer as draws
from conformance.strategies import optimizer_changes as changes
from conformance.strategies import param_groups as groups
from conformance.strategies.building_blocks import any_optimizer, having
from conformance.submissions.contract import Contract, Function

_GROUPED = ("first group's options everywhere", "options of groups ignored")
_check = partial(Check, requires=BASE)
_train = partial(_check, assertion=trains, rules_out=STILL, theme="numbers")
_of_kinds = partial(_train, theme="kinds of parameters and layers")
_in_use = partial(_train, theme="use of the model")
_with_options = partial(_train, theme="options and groups")
_runs = partial(Check, requires=("runs_to_the_end",))
_state = partial(_runs, theme="memory and state", assertion=assertions.state_is_sharded)
_closure = partial(_in_use, assertion=assertions.closure)
_zero_grad = partial(_runs, theme="use of the model", assertion=assertions.zero_grad_clears_all)
_waits = partial(Check, theme="waiting", assertion=results_are_waited_for)
_WITHOUT_PARAMETERS = ("trains[fewer_parameters_than_ranks]",)  # a rank may have none of a small group
# fmt: off
_CHECKS = (
    _train("runs_to_the_end",
        "Construction, forward, backward and the optimizer's step run to their end on every rank.", draws.optimized,
        assertion=runs_to_the_end, requires=()),
    _waits("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(draws.optimized, gated=True), requires=("runs_to_the_end",)),
    _train("trains[one_rank]", "In a world of one rank, the optimizer is the plain one.", draws.optimized_on_one_rank,
        requires=("runs_to_the_end",)),
    _train("training_equals_one_process",
        "After every step, every rank holds the parameters that the unsharded optimizer gives.", draws.optimized,
        requires=("results_are_waited_for",)),
    _train("trains[float32]", "Training in float32 is right to the precision of float32, and ranks stay identical.",
        draws.optimized_in_float32, theme="precision"),
    _train("trains[bfloat16]", "Training in bfloat16 is right to the precision of bfloat16, and ranks stay identical.",
        draws.optimized_in_bfloat16, theme="precision"),
    _with_options("trains[any_torch_optimizer]",
        "Every torch optimizer that computes element by element can be sharded, with the options that only it has.",
        draws.stepping(optimizer=any_optimizer(), steps=st.integers(2, 3))),
    _of_kinds("trains[convolution]",
        "The weight of a convolution trains like any other, also where it is stored channels last.",
        draws.optimized_with_convolution),
    _in_use("trains[clipped_gradients]",
        "The step uses the gradients that are there when it is called, here clipped by norm.", draws.optimized_clipped,
        rules_out=("gradients of before clipping",)),
    _of_kinds("trains[fewer_parameters_than_ranks]", "A rank that owns no parameter takes part in every step.",
        draws.with_more_ranks),
    _with_options("groups[own_options]", "Each parameter group trains with its own options.", groups.with_groups,
        rules_out=_GROUPED),
    _waits("results_are_waited_for[groups]",
        "With two parameter groups, the result of a collective is used only after a wait for it.",
        having(groups.with_groups, gated=True), requires=("results_are_waited_for",)),
    _with_options("groups[smaller_than_the_world]",
        "A parameter group may have fewer parameters than there are ranks: each trains with its group's options.",
        groups.with_small_group, requires=("groups[own_options]", *_WITHOUT_PARAMETERS), rules_out=_GROUPED),
    _with_options("groups[added_before_training]",
        "A parameter group that is added before the first step trains, with its own options.", changes.adding_before,
        rules_out=NEW_GROUP),
    _with_options("groups[added_during_training]",
        "A parameter group that is added between two steps trains from then on, and the others keep their state.",
        changes.adding_during, requires=(*BASE, "groups[added_before_training]"), rules_out=NEW_GROUP),
    _with_options("groups[added_with_the_defaults]",
        "A group that is added without options has the constructor's options, not those of the group before it.",
        changes.adding_group_without_options, requires=("groups[own_options]", "groups[added_during_training]"),
        rules_out=NEW_GROUP),
    _with_options("options[lr]",
        "A learning rate that is written to `optimizer.param_groups` takes effect at the next step.",
        changes.changing_lr, rules_out=IGNORED),
    _with_options("options[others]",
        "An option that is written to `optimizer.param_groups`, such as weight decay, takes effect at the next step.",
        changes.changing_another_option, rules_out=IGNORED),
    _with_options("options[one_group]",
        "An option that is written to one group of `optimizer.param_groups` takes effect in that group alone.",
        changes.changing_one_group, requires=("groups[own_options]", "options[lr]"),
        rules_out=(*IGNORED, "change of one group made in all")),
    _with_options("options[scheduler]", "A torch learning-rate scheduler works on the optimizer.",
        changes.with_scheduler, rules_out=IGNORED),
    _closure("closure",
        "`step(closure)` calls the closure once, with gradients enabled, uses what it computed, and returns its value.",
        draws.with_closure),
    _closure("closure[ranks_without_parameters]",
        "A rank that owns no parameter calls the closure once too: the other ranks wait for it in its collectives.",
        draws.with_one_parameter(draws.with_closure), requires=("closure", "trains[fewer_parameters_than_ranks]")),
    _zero_grad("zero_grad",
        "`zero_grad` clears the gradients of all parameters on every rank, not only of those that the rank owns.",
        draws.clearing),
    _zero_grad("zero_grad[added_groups]", "`zero_grad` clears the gradients of groups that were added later too.",
        changes.clearing_added_group, requires=("groups[added_before_training]", "zero_grad")),
    _train("trains[everything_together]",
        "Groups, also later ones, changes of options, a scheduler, and a closure or clipping work together.",
        changes.groups_and_changes,
        requires=("options[one_group]", "groups[added_during_training]", "options[scheduler]", "closure",
            "trains[clipped_gradients]", *_WITHOUT_PARAMETERS), rules_out=(*IGNORED, *NEW_GROUP, "state lost")),
    _state("state_is_sharded",
        "Together the ranks hold the optimizer's state once: no rank keeps all of it, and nothing is missing.",
        draws.with_state),
    _state("state_is_sharded[groups]",
        "The optimizer state of parameters in several groups, also of later ones, is held once, over all ranks.",
        groups.with_state_of_groups,
        requires=("state_is_sharded", "groups[own_options]", "groups[added_during_training]", *_WITHOUT_PARAMETERS),
        advice="Parameters come in groups here: deal out those of each group among the ranks, of later ones too."),
    _state("state_is_balanced",
        "No rank holds more than 1/N of the optimizer's state and the largest parameter's, on N ranks.",
        draws.with_large_weights, assertion=assertions.state_is_balanced, requires=("state_is_sharded",)),
    _train("trains[beside_data_parallel]",
        "Training with the optimizer and averaged gradients equals training in one process.", draws.beside_wrapper,
        requires=(*BASE, "zero_grad"), rules_out=("never synchronised",)),
    _closure("closure[beside_data_parallel]",
        "A closure may call `optimizer.zero_grad()`, and average new gradients; each rank gets its own loss.",
        having(draws.beside_wrapper, closure=True), requires=("closure", "trains[beside_data_parallel]"),
        rules_out=("never synchronised",),
        advice="The closure calls `optimizer.zero_grad()`, which has to clear every parameter's gradient also there: "
        "keep `param_groups` whole while it runs, or call it before the inner optimizer's step."),
    _state("state_is_balanced[two_groups]",
        "Each of two groups, the second of which may be added later, is dealt out evenly, and all state is held once.",
        groups.with_large_weights_in_two_groups, assertion=assertions.state_is_balanced,
        requires=("state_is_balanced", "state_is_sharded[groups]"),
        advice="Half of the parameters come in a second group, given at once or by `add_param_group`: deal these out, "
        "too, each to the rank that has the fewest bytes so far. A parameter that gets another owner takes its state "
        "along: the rank that had it drops it."),
    *EXTENDED,
)
_ASPECTS = (
    Aspect("equals the unsharded one", 2.5,
        ("runs_to_the_end", "results_are_waited_for", "training_equals_one_process", "trains[one_rank]",
            "trains[float32]", "trains[bfloat16]", "trains[any_torch_optimizer]", "trains[convolution]",
            "trains[clipped_gradients]", "trains[beside_data_parallel]", "trains[everything_together]"),
        essential=True),
    Aspect("state is sharded", 2.5, ("state_is_sharded", "state_is_sharded[groups]"), essential=True),
    Aspect("state is balanced", 2, ("state_is_balanced", "state_is_balanced[two_groups]")),
    Aspect("parameter groups", 2,
        ("groups[own_options]", "results_are_waited_for[groups]", "groups[added_before_training]",
            "groups[added_during_training]", "groups[added_with_the_defaults]")),
    Aspect("changes of options", 2, ("options[lr]", "options[others]", "options[one_group]", "options[scheduler]")),
    Aspect("closures and clearing", 2,
        ("closure", "closure[beside_data_parallel]", "zero_grad", "zero_grad[added_groups]")),
    Aspect("unusual sizes", 2, ("trains[fewer_parameters_than_ranks]", "groups[smaller_than_the_world]",
            "closure[ranks_without_parameters]")),
)
# fmt: on
SHARDED_OPTIMIZER = Component(
    contract=Contract(
        "sharded_optimizer",
        "optimizer",
        Function("get_sharded_optimizer", ("params", "optimizer_cls"), keywords=True),
    ),
    about="An optimizer of which each rank keeps the state of a share of the parameters.",
    exercise="conformance.ranks.train:train",
    numbers=training_numbers,
    simplest=Scenario(world_size=1, replicated=True),
    answer=Observation,
    checks=_CHECKS,
    carries=("runs_to_the_end", "trains[one_rank]", "training_equals_one_process"),
    aspects=_ASPECTS,
    diagnose=diagnose,
)
