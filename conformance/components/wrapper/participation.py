"""Extended checks of parameters that take part on some ranks, in some steps, or until they are frozen."""

from conformance.checks.check import Trial, advising
from conformance.checks.training import gradients_averaged, training_equals_one_process


def freezing_after_wrapping(trial: Trial) -> None:
    """A parameter that is frozen after wrapping stays as it is, and nobody waits for its gradient."""
    training_equals_one_process(trial)


def unfreezing_after_wrapping(trial: Trial) -> None:
    """A parameter that is let train after wrapping is synchronised from then on."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def unused_on_some_ranks(trial: Trial) -> None:
    """A parameter that only some ranks use gets the average with zero for the others, and nobody waits forever."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def each_rank_uses_another(trial: Trial) -> None:
    """Of two parameters, even ranks may use one and odd ranks the other: each gets the average with zero."""
    with advising("Even ranks use one parameter here, odd ranks another: what any rank has used is used."):
        unused_on_some_ranks(trial)


def unused_everywhere(trial: Trial) -> None:
    """A parameter that no rank uses is left alone by the optimizer, and nobody waits for its gradient."""
    training_equals_one_process(trial)


def unused_while_accumulating(trial: Trial) -> None:
    """Also where gradients add up, a rank that does not use a parameter adds nothing, and takes nothing away."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def used_in_some_steps(trial: Trial) -> None:
    """A parameter that no rank uses in every other step trains in the others alone: nothing is remembered of it."""
    training_equals_one_process(trial)
    gradients_averaged(trial)


def used_by_ranks_in_turn(trial: Trial) -> None:
    """Where ranks take turns in using a parameter, one that does not use it adds zero, and not what it had before."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def gradients_outside_the_optimizer(trial: Trial) -> None:
    """Gradients of parameters that the optimizer does not hold yet are averaged like others."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def gradient_order_differs(trial: Trial) -> None:
    """Gradients that become ready in another order on another rank are not mixed up."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
