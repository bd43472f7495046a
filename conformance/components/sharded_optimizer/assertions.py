"""Assertions about sharded optimizers. Ranks start equal and see the same batch: only the optimizer can be wrong."""

import math

from conformance.checks.check import Violation
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.checks.words import listed, step_words
from conformance.oracle.tolerance import TOLERANCE

_CLOSURE = (
    "Call the closure once in the sharded optimizer's own `step`, before the inner optimizer's; give the inner "
    "`step` no closure, and return the value."
)


def closure(trial: Trial) -> None:
    """Hold `step(closure)` to one call of the closure, with gradients enabled, and training to one process."""
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
    trains(trial)


def zero_grad_clears_all(trial: Trial) -> None:
    """Hold `zero_grad` to clearing all parameters, and to leaving zeros in place of None where it is told so."""
    for rank, seen in enumerate(trial.observations):
        if seen.uncleared:
            raise Violation(
                f"On rank {rank}, zero_grad(set_to_none={trial.scenario.set_to_none}) left the gradients of "
                f"{listed(seen.uncleared)} ({len(seen.uncleared)} of {len(trial.scenario.model.trainable)} "
                "parameters).",
                "Every rank computes gradients of all parameters: those that are not cleared add up from step to step. "
                "Clear the parameters of the outer `param_groups`, not those of the inner optimizer.",
            )


def zero_grad_keeps_tensors(trial: Trial) -> None:
    """Hold `zero_grad(set_to_none=False)` to leaving gradients of zeros, not None."""
    for rank, seen in enumerate(trial.observations):
        if seen.dropped:
            raise Violation(
                f"On rank {rank}, zero_grad(set_to_none=False) set the gradients of {listed(seen.dropped)} to None; "
                "expected zeros.",
                "Pass `set_to_none` on, or leave `zero_grad` to `torch.optim.Optimizer`.",
            )


def parameters_keep_their_memory(trial: Trial) -> None:
    """Hold a step to writing into the parameters' memory."""
    for rank, seen in enumerate(trial.observations):
        if seen.moved:
            raise Violation(
                f"On rank {rank}, a step has put {listed(dict.fromkeys(seen.moved))} elsewhere in memory.",
                "Write what was received with `p.data.copy_(...)`; `p.data = ...` leaves every view of the parameter "
                "(flat buffers, shared memory) with the old values.",
            )


def loading_leaves_the_state_dict(trial: Trial) -> None:
    """Hold `load_state_dict` to changing nothing in its argument."""
    for rank, seen in enumerate(trial.observations):
        if seen.altered:
            raise Violation(
                f"On rank {rank}, load_state_dict has changed what it was given, at {listed(seen.altered)}.",
                "Work on a copy (`copy.deepcopy(state_dict)`, or a shallow one of each dict that is written to).",
            )


def other_keys_survive_loading(trial: Trial) -> None:
    """Hold `param_groups` after loading to all keys that were saved."""
    for rank, seen in enumerate(trial.observations):
        if seen.lost:
            raise Violation(
                f"On rank {rank}, `param_groups` differ from those of the optimizer that was saved, at "
                f"{listed(seen.lost)}.",
                "Save and load each group whole, but for its parameters: schedulers keep `initial_lr` there, and do "
                "not go on without it.",
            )


def param_groups_hold_all(trial: Trial) -> None:
    """Hold `optimizer.param_groups` on every rank to all parameters."""
    for rank, seen in enumerate(trial.observations):
        if seen.unlisted:
            raise Violation(
                f"On rank {rank}, `optimizer.param_groups` lacks {listed(seen.unlisted)} "
                f"({len(seen.unlisted)} of {len(trial.scenario.model.shapes)} parameters).",
                "Gradient scalers and clipping look for gradients there: with other parameters on each rank, one skips "
                "a step that others make. Give all parameters to `Optimizer.__init__`, and each rank's own to the "
                "inner optimizer alone.",
            )
