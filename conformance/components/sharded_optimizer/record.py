"""The component `sharded_optimizer`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component, training_numbers
from conformance.components.sharded_optimizer.table import CHECKS
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.submissions.contract import Contract, Function

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
    checks=CHECKS,
    carries=("runs_to_the_end", "trains[one_rank]", "training_equals_one_process"),
    aspects=(
        Aspect(
            "equals the unsharded one",
            4,
            (
                "runs_to_the_end",
                "results_are_waited_for",
                "training_equals_one_process",
                "trains[one_rank]",
                "trains[float32]",
                "trains[bfloat16]",
                "trains[any_torch_optimizer]",
                "trains[convolution]",
                "trains[clipped_gradients]",
                "trains[beside_data_parallel]",
                "trains[everything_together]",
            ),
            essential=True,
        ),
        Aspect("state is sharded", 3.5, ("state_is_sharded", "state_is_sharded[groups]"), essential=True),
        Aspect("state is balanced", 1, ("state_is_balanced", "state_is_balanced[two_groups]")),
        Aspect(
            "parameter groups",
            2.5,
            (
                "groups[own_options]",
                "results_are_waited_for[groups]",
                "groups[added_before_training]",
                "groups[added_during_training]",
                "groups[added_with_the_defaults]",
            ),
        ),
        Aspect(
            "changes of options", 1.5, ("options[lr]", "options[others]", "options[one_group]", "options[scheduler]")
        ),
        Aspect(
            "closures and clearing",
            1.5,
            ("closure", "closure[beside_data_parallel]", "zero_grad", "zero_grad[added_groups]"),
        ),
        Aspect(
            "unusual sizes",
            1,
            (
                "trains[fewer_parameters_than_ranks]",
                "groups[smaller_than_the_world]",
                "closure[ranks_without_parameters]",
            ),
        ),
    ),
    diagnose=diagnose,
)
