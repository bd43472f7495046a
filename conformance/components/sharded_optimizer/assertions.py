"""Assertions about sharded optimizers. Ranks start equal and see the same batch: only the optimizer can be wrong.

Together the ranks keep all of the optimizer's state once, and each about 1/N.
"""

import math

from conformance.checks.check import Violation
from conformance.checks.steps import none_noted
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.checks.words import step_words
from conformance.oracle.tolerance import TOLERANCE

_CLOSURE = (
    "Call the closure once in the sharded optimizer's own `step`, before the inner optimizer's; give the inner "
    "`step` no closure, and return the value."
)
_ALIGNED = 128  # elements
_HALVES = 2
_TOO_MUCH = 1.5  # of the state of one optimizer, in the memory of all ranks' processes; rounding by allocators is less


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
                    f"{where}, step(closure) returned {returned}; expected the closure's {call.loss:.6g}.", _CLOSURE
                )
    trains(trial)


zero_grad_clears_all = none_noted(
    "uncleared",
    "zero_grad(set_to_none={scenario.set_to_none}) left the gradients of {names} ({count} of {parameters} parameters).",
    "Every rank computes gradients of all parameters: those that are not cleared add up from step to step. Clear the "
    "parameters of the outer `param_groups`, not those of the inner optimizer.",
)
zero_grad_keeps_tensors = none_noted(
    "dropped",
    "zero_grad(set_to_none=False) set the gradients of {names} to None; expected zeros.",
    "Pass `set_to_none` on, or leave `zero_grad` to `torch.optim.Optimizer`.",
)
parameters_keep_their_memory = none_noted(
    "moved",
    "a step has put {names} elsewhere in memory.",
    "Write what was received with `p.data.copy_(...)`; `p.data = ...` leaves every view of the parameter (flat "
    "buffers, shared memory) with the old values.",
)
loading_leaves_the_state_dict = none_noted(
    "altered",
    "load_state_dict has changed what it was given, at {names}.",
    "Work on a copy (`copy.deepcopy(state_dict)`, or a shallow one of each dict that is written to).",
)
other_keys_survive_loading = none_noted(
    "lost",
    "`param_groups` differ from those of the optimizer that was saved, at {names}.",
    "Save and load each group whole, but for its parameters: schedulers keep `initial_lr` there, and do not go on "
    "without it.",
)
param_groups_hold_all = none_noted(
    "unlisted",
    "`optimizer.param_groups` lacks {names} ({count} of {parameters} parameters).",
    "Gradient scalers and clipping look for gradients there: with other parameters on each rank, one skips a step that "
    "others make. Give all parameters to `Optimizer.__init__`, and each rank's own to the inner optimizer alone.",
)


def state_is_sharded(trial: Trial) -> None:
    """Hold the ranks together to keeping the optimizer's state once, but for padding."""
    full, held = sum(trial.expected.state_bytes.values()), _held(trial)
    if not full <= sum(held) <= full + padding(trial):
        everyone = all(bytes_ == full for bytes_ in held)
        raise Violation(
            f"The ranks hold {_each(held)} bytes of optimizer state, {sum(held)} in all; one unsharded optimizer has "
            f"{full}." + (" Every rank keeps the state of all parameters: nothing is sharded." if everyone else ""),
            "Give the inner optimizer only the parameters that the rank owns.",
        )
    weighed = [seen.process_bytes or 0 for seen in trial.observations]  # 0 if not known
    if sum(weighed) > _TOO_MUCH * full + padding(trial):
        raise Violation(
            f"The processes of the ranks need {_each(weighed)} bytes more for an optimizer with this state than for "
            f"one without any, {sum(weighed)} in all; one unsharded optimizer has {full}.",
            "Keep no state of parameters that another rank owns: not in a global table, a closure or a class either.",
        )


def state_is_balanced(trial: Trial) -> None:
    """Hold the state to being kept once, and the fullest rank to what list scheduling gives it (Graham, 1969).

    That is an even share and the largest parameter's state; where parameters come in two halves (two groups, or frozen
    ones and others), each of which may be dealt out alone, a parameter's of each half.
    """
    state_is_sharded(trial)
    scenario, sizes, held = trial.scenario, trial.expected.state_bytes.values(), _held(trial)
    in_halves = scenario.schedule or len(scenario.optimizer.groups) == _HALVES
    even = sum(sizes) / scenario.world_size
    most = even + (2 if in_halves else 1) * max(sizes)
    if max(held) > most:
        largest = "one parameter of each half" if in_halves else "the largest parameter"
        raise Violation(
            f"Rank {held.index(max(held))} holds {max(held)} of {sum(sizes)} bytes of optimizer state (by rank: "
            f"{_each(held)}); an even share is {even:.0f}, and with {largest} on top {most:.0f}.",
            "Parameters differ in size (weights, biases): give each to the rank that has the fewest bytes so far, "
            "rather than to ranks in turn.",
        )


def _held(trial: Trial) -> list[int]:
    """Return the bytes of state by rank; where none has any, it is kept where nobody can look."""
    found = [seen.state_bytes for seen in trial.observations]
    if None in found or not any(found):
        where = f"On rank {found.index(None)} no torch optimizer" if None in found else "On no rank any optimizer state"
        raise Violation(
            f"{where} could be found in what get_sharded_optimizer returned, so its state cannot be measured.",
            "Keep the inner optimizer in an attribute of what get_sharded_optimizer returns.",
        )
    return [held for held in found if held is not None]


def padding(trial: Trial) -> int:
    """Return the bytes that sharding by element may add to the state.

    Each rank's part, of all parameters together or of each, may be filled up to a multiple of `_ALIGNED` elements:
    Megatron-LM does so for the speed of collectives.
    """
    sizes, shapes = trial.expected.state_bytes, trial.scenario.model.shapes
    elements = sum(math.prod(shapes[name]) for name in sizes)
    return _ALIGNED * trial.scenario.world_size * len(sizes) * sum(sizes.values()) // max(1, elements)


def _each(held: list[int]) -> str:
    return ", ".join(map(str, held))
