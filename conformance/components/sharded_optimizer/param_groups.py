"""Checks of a sharded optimizer's parameter groups: their options, groups that are added, changes in one of them."""

from conformance.checks.check import Trial, Violation, listed
from conformance.checks.communication import results_are_waited_for
from conformance.checks.training import ranks_stay_identical, training_equals_one_process


def param_groups_keep_options(trial: Trial) -> None:
    """Each parameter group trains with its own options."""
    training_equals_one_process(trial)


def groups_are_waited_for(trial: Trial) -> None:
    """What a collective gives is used only after somebody has waited for it, with two parameter groups too."""
    results_are_waited_for(trial)


def groups_smaller_than_the_world(trial: Trial) -> None:
    """A parameter group may have fewer parameters than there are ranks: each trains with its group's options."""
    training_equals_one_process(trial)


def add_param_group_before_training(trial: Trial) -> None:
    """A parameter group added before the first step trains, with its own options."""
    training_equals_one_process(trial)


def add_param_group_during_training(trial: Trial) -> None:
    """A parameter group added between two steps trains from then on, and the others keep their state."""
    training_equals_one_process(trial)


def added_groups_take_the_defaults(trial: Trial) -> None:
    """A group added without options of its own has the constructor's, not those of the group that is there."""
    training_equals_one_process(trial)


def small_groups_are_added(trial: Trial) -> None:
    """An added group may be smaller than the world, and may hold the first parameters that a rank owns."""
    training_equals_one_process(trial)


def groups_may_have_names(trial: Trial) -> None:
    """A parameter group may have keys that are no options, such as a name for logs and schedulers."""
    training_equals_one_process(trial)


def groups_may_be_empty(trial: Trial) -> None:
    """A parameter group may have no parameters, as one for biases of a model that has none."""
    training_equals_one_process(trial)


def groups_of_generators(trial: Trial) -> None:
    """The parameters of a group may come as a generator, such as `module.parameters()`, which can be read once."""
    training_equals_one_process(trial)


def changes_in_an_added_group(trial: Trial) -> None:
    """A learning rate written to `param_groups` takes effect in added groups too, and is no default of later ones."""
    training_equals_one_process(trial)


def groups_are_added_after_loading(trial: Trial) -> None:
    """A group may be added to an optimizer that has loaded a state, and trains once in each step, like any other."""
    training_equals_one_process(trial)


def changes_in_one_group(trial: Trial) -> None:
    """An option written to one group of `optimizer.param_groups` takes effect there, and nowhere else."""
    training_equals_one_process(trial)


def param_groups_hold_all(trial: Trial) -> None:
    """On every rank, `optimizer.param_groups` holds all parameters, not only those that the rank owns."""
    for rank, seen in enumerate(trial.observations):
        if seen.unlisted:
            raise Violation(
                f"On rank {rank}, `optimizer.param_groups` lacks {listed(seen.unlisted)} "
                f"({len(seen.unlisted)} of {len(trial.scenario.model.shapes)} parameters).",
                "Gradient scalers and clipping look for gradients there: with other parameters on each rank, one skips "
                "a step that others make. Give all parameters to `Optimizer.__init__`, and each rank's own to the "
                "inner optimizer alone.",
            )


def groups_and_changes_together(trial: Trial) -> None:
    """Groups, later ones too, go well together with changes of options, a scheduler, and a closure or clipping."""
    training_equals_one_process(trial)
    ranks_stay_identical(trial)
