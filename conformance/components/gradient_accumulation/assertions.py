"""Assertions about gradient accumulation: one step over several micro-batches is one step over all of them."""

from collections.abc import Iterator

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.gradient_accumulation.averaging_wrapper import unsymmetric_loss
from conformance.components.gradient_accumulation.case import SCALE
from conformance.components.gradient_accumulation.micro_batches import MISTAKES, Combine, Loss, mean, train
from conformance.workload.numbers import Tensors, under

_WRAPPERS = {
    "backward": "",
    "forward": ", with a wrapper whose forward decides whether to synchronise",
    "finish": ", with a wrapper that is not done when backward returns",
}


def one_optimizer_step(trial: CaseTrial) -> None:
    """Hold each call to one optimizer step."""
    for call, seen in _calls(trial):
        if seen["steps"] != 1:
            raise Violation(
                f"{call} made {seen['steps']} optimizer steps; expected 1.",
                "Step once, after the last micro-batch's backward.",
            )


def training_equals_one_process(trial: CaseTrial) -> None:
    """Hold parameters after each step to one process on all micro-batches, and the scaler to one update a step."""
    for step, wanted in enumerate(train(trial, mean)):
        for rank, answer in enumerate(trial.answers):
            if wrong := first_mismatch(_after(answer, step), wanted):
                raise Violation(
                    f"On rank {rank} after {_call(trial, step)}, the parameter `{wrong.name}` is not what one process "
                    f"on all of them gives: it {wrong.words}.",
                    _advice(trial, answer, step),
                )
    if trial.case.scaled:
        _hold_scale(trial)


def one_exchange_of_gradients(trial: CaseTrial) -> None:
    """Hold the wrapper to averaging gradients once a step."""
    for call, seen in _calls(trial):
        if seen["exchanges"] != 1:
            raise Violation(
                f"{call}: the wrapper averaged gradients {seen['exchanges']} times; expected once.",
                "Leave averaging to the wrapper, and run forward and backward of all micro-batches but the last inside "
                "`with ddp_model.no_sync():`.",
            )


def one_micro_batch_at_a_time(trial: CaseTrial) -> None:
    """Hold each micro-batch to a forward and a backward before the next forward."""
    for call, seen in _calls(trial):
        if seen["forwards"] != trial.case.micro_batches or seen["alive"] > 1:
            raise Violation(
                f"{call} called the wrapper {seen['forwards']} times, and {seen['alive']} forwards had no backward "
                "yet; expected one call for each, followed by its backward.",
                "Call `backward()` on each micro-batch's loss, before the next forward: activations of all of them "
                "take the memory of one big batch.",
            )


def modes_stay(trial: CaseTrial) -> None:
    """Hold every module to the mode that it is in."""
    for call, seen in _calls(trial):
        if not seen["same_modes"]:
            raise Violation(
                f"{call} has changed the mode of the model, or of a module in it: one was in evaluation mode.",
                "Leave `train()` and `eval()` to whoever calls: a frozen norm would change its statistics.",
            )


def arguments_stay(trial: CaseTrial) -> None:
    """Hold the list of micro-batches, and the tensors in it, to what they were."""
    for call, seen in _calls(trial):
        if not seen["same_batches"]:
            raise Violation(
                f"{call} has changed the list that it was given, or a tensor in it.",
                "Go through the list without taking anything out of it, and compute on copies, not in place.",
            )


def _calls(trial: CaseTrial) -> Iterator[tuple[str, Tensors]]:
    """Yield words for each call on each rank, and what was found of it by name."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            yield f"On rank {rank}, {_call(trial, step)}", under(answer, f"{step}/")


def _call(trial: CaseTrial, step: int) -> str:
    """Return words for the call of a step, and for what is special about the case."""
    case, number = trial.case, trial.case.micro(step)
    over = "1 micro-batch" if number == 1 else f"{number} micro-batches"
    overflow = f", with infinite gradients on rank {case.overflow} in step 1, a step that is to be skipped"
    return f"step {step + 1} of {case.steps} over {over}{overflow if case.overflow >= 0 else ''}{_WRAPPERS[case.at]}"


def _hold_scale(trial: CaseTrial) -> None:
    """Hold the scale to what one `update` a step makes of it: it doubles, or halves after an overflow."""
    expected = SCALE
    for step in range(trial.case.steps):
        expected *= 0.5 if trial.case.overflows(step) else 2.0
        for rank, answer in enumerate(trial.answers):
            seen = float(answer[f"{step}/scale"])
            if seen != expected:
                raise Violation(
                    f"On rank {rank} after step {step + 1}, the scale is {seen:g}; expected {expected:g}.",
                    "Call `scaler.update()` once after each `scaler.step(optimizer)`.",
                )


def _advice(trial: CaseTrial, answer: Tensors, step: int) -> str:
    """Return what to do about wrong parameters after a step."""
    if answer[f"{step}/early_updates"]:
        return (
            "`scaler.update()` was called before the step's `scaler.step(optimizer)`: the scale changes between "
            "micro-batches whose gradients add up. Call it once, after `scaler.step(optimizer)`."
        )
    if trial.case.overflow >= 0:
        return _advice_on_overflow(answer, step)
    return _named(trial) or ("Scale the loss, and step by `scaler.step(optimizer)`." if trial.case.scaled else "")


def _advice_on_overflow(answer: Tensors, step: int) -> str:
    if step and first_mismatch(_after(answer, step), _after(answer, step - 1)) is None:
        return (
            "The step after it was left out as well: infinite gradients were still there. Clear gradients before each "
            "step's first micro-batch, whatever came of the step before."
        )
    return "Step by `scaler.step(optimizer)`, which leaves out steps with infinite gradients."


def _named(trial: CaseTrial) -> str:
    """Return which known mistakes give what was seen."""
    fits = "* or *".join(words for words, combine in MISTAKES.items() if _gives(trial, combine))
    if fits:
        return f"Looks like *{fits}*."
    if _gives(trial, mean, lambda output, target: unsymmetric_loss(target, output)):
        return "Looks like *the loss's arguments swapped*: call `loss_fn(output, target)`."
    return ""


def _gives(trial: CaseTrial, combine: Combine, loss_fn: Loss = unsymmetric_loss) -> bool:
    """Whether a mistake gives the parameters that every rank has after the last step."""
    last = trial.case.steps - 1
    return all(
        first_mismatch(_after(answer, last), train(trial, combine, rank, loss_fn)[last]) is None
        for rank, answer in enumerate(trial.answers)
    )


def _after(answer: Tensors, step: int) -> Tensors:
    """Return a rank's parameters after a step."""
    return under(answer, f"{step}/parameter/")
