"""Assertions about gradient accumulation: one step over several micro-batches is one step over all of them."""

from conformance.checks.check import Violation
from conformance.checks.compare import Mismatch, first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.gradient_accumulation.averaging_wrapper import unsymmetric_loss
from conformance.components.gradient_accumulation.micro_batches import MISTAKES, OWN_MISTAKES, mean, overflows, train
from conformance.components.gradient_accumulation.numbers import SCALE
from conformance.workload.numbers import Tensors


def one_optimizer_step(trial: CaseTrial) -> None:
    """Hold each call to one optimizer step."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            seen = int(answer[f"steps/{step}"])
            if seen != 1:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} made {seen} optimizer steps; expected 1.",
                    "Step once, after the last micro-batch's backward.",
                )


def training_equals_one_process(trial: CaseTrial) -> None:
    """Hold parameters after each step to one process on all micro-batches, and the scaler to one update a step."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        advice = _advice_on_overflow(trial, rank, step) if trial.case.overflow >= 0 else _named(trial)
        raise Violation(
            f"On rank {rank} after {_call(trial, step)}{_circumstances(trial)}, the parameter `{wrong.name}` is not "
            f"what one process on all of them gives: it {wrong.words}.",
            advice,
        )
    if trial.case.scaled:
        _hold_scale(trial)


def one_exchange_of_gradients(trial: CaseTrial) -> None:
    """Hold the wrapper to averaging gradients once a step."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            seen = int(answer[f"exchanges/{step}"])
            if seen != 1:
                raise Violation(
                    f"On rank {rank}, the wrapper averaged gradients {seen} times in {_call(trial, step)}"
                    f"{_circumstances(trial)}; expected once.",
                    "Leave averaging to the wrapper, and run forward and backward of all micro-batches but the last "
                    "inside `with ddp_model.no_sync():`.",
                )


def one_micro_batch_at_a_time(trial: CaseTrial) -> None:
    """Hold each micro-batch to a forward and a backward before the next forward."""
    for rank, answer in enumerate(trial.answers):
        forwards, alive = int(answer["forwards/0"]), int(answer["alive/0"])
        if forwards != trial.case.micro_batches or alive > 1:
            raise Violation(
                f"On rank {rank}, {_call(trial, 0)} called the wrapper {forwards} times, and {alive} forwards had no "
                "backward yet; expected one call for each, followed by its backward.",
                "Call `backward()` on each micro-batch's loss, before the next forward: activations of all of them "
                "take the memory of one big batch.",
            )


def modes_stay(trial: CaseTrial) -> None:
    """Hold every module to the mode that it is in."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            if not answer[f"modes/{step}"]:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} has changed the mode of the model, or of a module in it: "
                    "one was in evaluation mode.",
                    "Leave `train()` and `eval()` to whoever calls: a frozen norm would change its statistics.",
                )


def arguments_stay(trial: CaseTrial) -> None:
    """Hold the list of micro-batches, and the tensors in it, to what they were."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            if not answer[f"left/{step}"]:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} has changed the list that it was given, or a tensor in it.",
                    "Go through the list without taking anything out of it, and compute on copies, not in place.",
                )


def _circumstances(trial: CaseTrial) -> str:
    """Return what is special about a case, in words that follow on the step."""
    overflow = (
        f", with infinite gradients on rank {trial.case.overflow} in step 1, a step that is to be skipped"
        if trial.case.overflow >= 0
        else ""
    )
    wrappers = {
        "forward": ", with a wrapper whose forward decides whether to synchronise",
        "finish": ", with a wrapper that is not done when backward returns",
    }
    return overflow + wrappers.get(trial.case.at, "")


def _hold_scale(trial: CaseTrial) -> None:
    """Hold the scale to what one `update` a step makes of it: it doubles, or halves after an overflow."""
    expected = SCALE
    for step in range(trial.case.steps):
        expected *= 0.5 if overflows(trial, step) else 2.0
        for rank, answer in enumerate(trial.answers):
            seen = float(answer[f"scale/{step}"])
            if seen != expected:
                raise Violation(
                    f"On rank {rank} after step {step + 1}, the scale is {seen:g}; expected {expected:g}.",
                    "Call `scaler.update()` once after each `scaler.step(optimizer)`.",
                )


def _advice_on_overflow(trial: CaseTrial, rank: int, step: int) -> str:
    now, before = (_after(trial.answers[rank], at) for at in (step, max(0, step - 1)))
    if step and first_mismatch(now, before) is None:
        return (
            "The step after it was left out as well: infinite gradients were still there. Clear gradients before each "
            "step's first micro-batch, whatever came of the step before."
        )
    return "Step by `scaler.step(optimizer)`, which leaves out steps with infinite gradients."


def _first_wrong(trial: CaseTrial) -> tuple[int, int, Mismatch | None]:
    """Return the first rank and step whose parameters are wrong, and which."""
    for step, wanted in enumerate(train(trial, mean)):
        for rank, answer in enumerate(trial.answers):
            wrong = first_mismatch(_after(answer, step), wanted)
            if wrong:
                return rank, step, wrong
    return 0, 0, None


def _named(trial: CaseTrial) -> str:
    """Return which known mistake gives what was seen."""
    last = trial.case.steps - 1
    fits = [words for words, combine in MISTAKES.items() if _is_as_by(trial, train(trial, combine)[last])]
    if fits:
        return f"Looks like *{'* or *'.join(fits)}*."
    if _is_as_by(trial, train(trial, mean, lambda output, target: unsymmetric_loss(target, output))[last]):
        return "Looks like *the loss's arguments swapped*: call `loss_fn(output, target)`."
    for words, combine in OWN_MISTAKES.items():
        own = (
            train(trial, lambda gradients, rank=rank, combine=combine: combine([gradients[rank]]))[last]  # type: ignore[misc]
            for rank in range(trial.case.world_size)
        )
        if all(
            first_mismatch(_after(answer, last), wanted) is None
            for answer, wanted in zip(trial.answers, own, strict=True)
        ):
            return f"Looks like *{words}*."
    return ""


def _is_as_by(trial: CaseTrial, wanted: Tensors) -> bool:
    """Whether parameters are, after the last step and on every rank, what a mistake makes of them."""
    return all(first_mismatch(_after(answer, trial.case.steps - 1), wanted) is None for answer in trial.answers)


def _after(answer: Tensors, step: int) -> Tensors:
    prefix = f"parameter/{step}/"
    return {name.removeprefix(prefix): value for name, value in answer.items() if name.startswith(prefix)}


def _call(trial: CaseTrial, step: int) -> str:
    return f"step {step + 1} of {trial.case.steps} over {_micro_batches(trial, step)}"


def _micro_batches(trial: CaseTrial, step: int) -> str:
    number = trial.case.micro(step)
    return "1 micro-batch" if number == 1 else f"{number} micro-batches"
