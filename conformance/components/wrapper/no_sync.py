"""Assertions about a wrapper's `no_sync`, which is an optional feature."""

from conformance.checks.check import NotOffered, Violation
from conformance.checks.traffic import of_the_model
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.checks.words import step_words


def accumulates_without_sending(trial: Trial) -> None:
    """Hold passes under `no_sync` to sending nothing, and training to one process."""
    if not all(seen.offers_no_sync for seen in trial.observations):
        raise NotOffered("the wrapped model has no `no_sync`")
    for step in range(trial.scenario.steps if trial.scenario.world_size > 1 else 0):
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
    trains(trial)
