"""Checks of sharded optimizers. Ranks start equal and see the same batch, so nothing but the optimizer can be wrong."""

import math

from conformance.checks.check import Trial, Violation, advising, first_mismatch, listed, step_words
from conformance.checks.training import ranks_stay_identical, training_equals_one_process
from conformance.oracle.tolerance import TOLERANCE

_CLOSURE = (
    "Call the closure once in the sharded optimizer's own `step`, before the inner optimizer's; give the inner "
    "`step` no closure, and return the value."
)


def equals_unsharded_optimizer(trial: Trial) -> None:
    """After every step, every rank holds the parameters that the unsharded optimizer gives."""
    training_equals_one_process(trial)
    ranks_stay_identical(trial)


def any_torch_optimizer(trial: Trial) -> None:
    """Every torch optimizer that computes element by element can be sharded, with the options that only it has."""
    training_equals_one_process(trial)


def convolution(trial: Trial) -> None:
    """The weight of a convolution trains like any other, also where it is stored channels last."""
    training_equals_one_process(trial)


def clipped_gradients(trial: Trial) -> None:
    """The step uses the gradients as they are when it is called, here clipped by norm."""
    training_equals_one_process(trial)


def two_optimizers_side_by_side(trial: Trial) -> None:
    """Two sharded optimizers, each with parameters of its own, have nothing to do with one another."""
    advice = (
        "Another optimizer was made, and steps between. Keep what belongs to one optimizer in that object, not in its "
        "class or in a global of the module."
    )
    with advising(advice):
        training_equals_one_process(trial)
    for step, wanted in enumerate(trial.expected.parameters):
        for rank, seen in enumerate(trial.observations):
            other = first_mismatch(seen.twin(step), wanted, trial.expected.parameter_limits[step])
            if other:
                raise Violation(
                    f"On rank {rank} after {step_words(trial.scenario, step)}, the parameter `{other.name}` of a "
                    f"second optimizer is not what training in one process gives: it {other.words}.",
                    advice,
                )


def lr_through_param_groups(trial: Trial) -> None:
    """A learning rate written to `optimizer.param_groups` takes effect at the next step."""
    training_equals_one_process(trial)


def options_through_param_groups(trial: Trial) -> None:
    """Any other option written to `optimizer.param_groups`, such as weight decay, takes effect at the next step."""
    training_equals_one_process(trial)


def lr_through_scheduler(trial: Trial) -> None:
    """A torch learning-rate scheduler works on the optimizer."""
    training_equals_one_process(trial)


def closure(trial: Trial) -> None:
    """`step(closure)` calls the closure once, with gradients enabled, uses what it computed, and returns its value."""
    _closure_is_called(trial)
    training_equals_one_process(trial)


def _closure_is_called(trial: Trial) -> None:
    for rank, seen in enumerate(trial.observations):
        for step, call in enumerate(seen.closures):
            where = f"On rank {rank} at {step_words(trial.scenario, step)}"
            if call.calls != 1:
                raise Violation(f"{where}, the closure was called {call.calls} times; expected once.", _CLOSURE)
            if not call.grad_enabled:
                raise Violation(
                    f"{where}, the closure was called with gradients disabled, so that a backward in it fails.",
                    "`step` runs under `torch.no_grad()`: wrap the call of the closure in `torch.enable_grad()`.",
                )
            if call.returned is None or not math.isclose(call.returned, call.loss, rel_tol=TOLERANCE):
                returned = "nothing that is one number" if call.returned is None else call.returned
                raise Violation(
                    f"{where}, step(closure) returned {returned}; expected the closure's {call.loss:.6g}.",
                    _CLOSURE,
                )


def closure_on_ranks_without_parameters(trial: Trial) -> None:
    """A rank that owns no parameter calls the closure all the same, once: others wait for it in its collectives."""
    closure(trial)


def zero_grad_clears_all(trial: Trial) -> None:
    """`zero_grad` clears the gradients of all parameters on every rank, not only of those that the rank owns."""
    for rank, seen in enumerate(trial.observations):
        if seen.uncleared:
            raise Violation(
                f"On rank {rank}, zero_grad(set_to_none={trial.scenario.set_to_none}) left the gradients of "
                f"{listed(seen.uncleared)} ({len(seen.uncleared)} of {len(trial.scenario.model.trainable)} "
                "parameters).",
                "Every rank computes gradients of all parameters: those that are not cleared add up from step to step. "
                "Clear the parameters of the outer `param_groups`, not those of the inner optimizer.",
            )


def zero_grad_clears_added_groups(trial: Trial) -> None:
    """`zero_grad` clears the gradients of groups that were added later too."""
    zero_grad_clears_all(trial)


def more_ranks_than_parameters(trial: Trial) -> None:
    """A rank that owns no parameter takes part all the same."""
    training_equals_one_process(trial)


def zero_grad_keeps_tensors(trial: Trial) -> None:
    """`zero_grad(set_to_none=False)` leaves gradients of zeros, as in any torch optimizer, and not None."""
    for rank, seen in enumerate(trial.observations):
        if seen.dropped:
            raise Violation(
                f"On rank {rank}, zero_grad(set_to_none=False) set the gradients of {listed(seen.dropped)} to None; "
                "expected zeros.",
                "Pass `set_to_none` on, or leave `zero_grad` to `torch.optim.Optimizer`.",
            )


def parameters_keep_their_memory(trial: Trial) -> None:
    """A step writes new values into the parameters' memory, which others may have views of, and does not replace it."""
    for rank, seen in enumerate(trial.observations):
        if seen.moved:
            raise Violation(
                f"On rank {rank}, a step has put {listed(dict.fromkeys(seen.moved))} elsewhere in memory.",
                "Write what was received with `p.data.copy_(...)`; `p.data = ...` leaves every view of the parameter "
                "(flat buffers, shared memory) with the old values.",
            )


def parameters_of_any_shape(trial: Trial) -> None:
    """Parameters without dimensions or elements, shared ones, and such as are not contiguous, train like others."""
    training_equals_one_process(trial)


def options_through_scheduler(trial: Trial) -> None:
    """A scheduler that moves momentum or betas besides the learning rate (`OneCycleLR`) works on the optimizer."""
    training_equals_one_process(trial)


def unused_parameters(trial: Trial) -> None:
    """A parameter that requires a gradient and has none is left as it is: no weight decay, no momentum."""
    with advising("Here a parameter has no gradient in some steps: skip it there, as torch's optimizers do."):
        training_equals_one_process(trial)


def large_parameters(trial: Trial) -> None:
    """Parameters of 1 MiB and more train to the last element, and reach every rank."""
    with advising(
        "Three parameters here have 1 MiB or more. Is there a limit to what is sent at once, or a remainder that is "
        "lost where something is sent in pieces?"
    ):
        training_equals_one_process(trial)
        ranks_stay_identical(trial)


def saving_changes_nothing(trial: Trial) -> None:
    """Taking `state_dict` changes nothing: training goes on as if it had not been."""
    with advising("`state_dict` was called before: build it from copies, and leave `param_groups` and `state` alone."):
        training_equals_one_process(trial)


def options_survive_loading(trial: Trial) -> None:
    """A new optimizer that loads `state_dict` goes on with the options that were saved, not with its own."""
    training_equals_one_process(trial)


def loading_leaves_the_state_dict(trial: Trial) -> None:
    """`load_state_dict` changes nothing in what it is given, which may be loaded again."""
    for rank, seen in enumerate(trial.observations):
        if seen.altered:
            raise Violation(
                f"On rank {rank}, load_state_dict has changed what it was given, at {listed(seen.altered)}.",
                "Work on a copy (`copy.deepcopy(state_dict)`, or a shallow one of each dict that is written to).",
            )


def loading_keeps_what_others_keep_there(trial: Trial) -> None:
    """After loading, `param_groups` have all that they had, also keys that are no options, such as a scheduler's."""
    for rank, seen in enumerate(trial.observations):
        if seen.lost:
            raise Violation(
                f"On rank {rank}, `param_groups` differ from those of the optimizer that was saved, at "
                f"{listed(seen.lost)}.",
                "Save and load each group whole, but for its parameters: schedulers keep `initial_lr` there, and do "
                "not go on without it.",
            )


def closure_beside_data_parallel(trial: Trial) -> None:
    """A closure may clear gradients by `optimizer.zero_grad()`, and average new ones; each rank gets its own loss."""
    _closure_is_called(trial)
    with advising(
        "The closure calls `optimizer.zero_grad()`, which has to clear every parameter's gradient also there: keep "
        "`param_groups` whole while it runs, or call it before the inner optimizer's step."
    ):
        training_equals_one_process(trial)


def frozen_parameters_in_groups(trial: Trial) -> None:
    """Parameters that do not require gradients may be in the optimizer; they stay, and the others train."""
    training_equals_one_process(trial)


def unfreezing_in_groups(trial: Trial) -> None:
    """A parameter that was frozen when the optimizer was made, and is let train later, is updated from then on.

    One that is frozen later is not, though it had a gradient: `zero_grad` clears that.
    """
    training_equals_one_process(trial)


def one_rank_optimizer(trial: Trial) -> None:
    """In a world of one rank, the optimizer is the plain one."""
    training_equals_one_process(trial)


def beside_data_parallel(trial: Trial) -> None:
    """Training with the optimizer and averaged gradients equals training in one process."""
    for step, wanted in enumerate(trial.expected.gradients):
        for rank, seen in enumerate(trial.observations):
            wrong = first_mismatch(seen.gradients(step), wanted, trial.expected.gradient_limits[step])
            if wrong:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, the averaged gradient of `{wrong.name}` is "
                    f"not that of one process: it {wrong.words}."
                )
    training_equals_one_process(trial)


def loaded_weights_are_the_start(trial: Trial) -> None:
    """Weights that the model loads between two steps are what the next step starts from."""
    training_equals_one_process(trial)


def options_change_after_loading(trial: Trial) -> None:
    """After loading too, an option written to `optimizer.param_groups` takes effect at the next step."""
    training_equals_one_process(trial)


def state_dict_round_trip(trial: Trial) -> None:
    """A new optimizer that loads `state_dict` continues as if nothing had happened."""
    training_equals_one_process(trial)
