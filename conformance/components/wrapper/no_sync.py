"""Extended checks of a wrapper's `no_sync`, which it need not have."""

from conformance.checks.check import NotOffered, Trial, Violation, advising, of_the_model, step_words
from conformance.checks.training import gradients_averaged, training_equals_one_process


def accumulates_without_synchronising(trial: Trial) -> None:
    """Under the wrapper's `no_sync` nothing is sent; the next backward outside of it synchronises the whole sum."""
    if not all(seen.offers_no_sync for seen in trial.observations):
        raise NotOffered("the wrapped model has no `no_sync`")
    for step in range(trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            happened = seen.happenings[step]
            ends = [at for at, one in enumerate(happened) if one.what == "returned"]
            began = next(at for at, one in enumerate(happened) if one.what == "began")
            early = [one for one in happened[began : ends[-2] + 1] if of_the_model(one, trial.scenario)]
            if early:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, gradients were sent under `no_sync`: "
                    f"{early[0].op}, and {len(early) - 1} further collectives.",
                    "Under `no_sync` gradients only add up in `.grad`: let the hooks do nothing.",
                )
    gradients_averaged(trial)
    training_equals_one_process(trial)


def no_sync_ends_with_an_exception(trial: Trial) -> None:
    """A backward pass that raises under `no_sync` ends it: what comes after is synchronised again."""
    with advising("The block of `no_sync` may be left by an exception: put back in a `finally` what it switches off."):
        gradients_averaged(trial)
        training_equals_one_process(trial)


def no_sync_may_be_nested(trial: Trial) -> None:
    """The end of a block of `no_sync` within another one leaves the outer one in force."""
    with advising(
        "A second `no_sync` was entered and left within the first. When the block ends, put back what was before it, "
        "in place of switching synchronisation on."
    ):
        accumulates_without_synchronising(trial)


def unused_in_the_last_micro_batch(trial: Trial) -> None:
    """What only micro-batches under `no_sync` use is averaged with the rest, though the last backward passes it by."""
    with advising(
        "A parameter has its gradient from the micro-batch under `no_sync` alone, and no hook of it runs in the last "
        "one: after that, look at `.grad` of all parameters, not at what has come in this backward."
    ):
        gradients_averaged(trial)
        training_equals_one_process(trial)


def no_sync_on_one_rank(trial: Trial) -> None:
    """In a world of one rank too, gradients add up under `no_sync`."""
    if not all(seen.offers_no_sync for seen in trial.observations):
        raise NotOffered("the wrapped model has no `no_sync`")
    gradients_averaged(trial)
    training_equals_one_process(trial)
