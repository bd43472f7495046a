"""Checks of gradient accumulation: one step over several micro-batches is one step over their concatenation."""

from conformance.checks.check import Violation
from conformance.checks.compare import Mismatch, first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.gradient_accumulation.averaging_wrapper import unsymmetric_loss
from conformance.components.gradient_accumulation.micro_batches import MISTAKES, OWN_MISTAKES, mean, overflows, train
from conformance.components.gradient_accumulation.numbers import SCALE
from conformance.workload.numbers import Tensors


def one_optimizer_step(trial: CaseTrial) -> None:
    """A call makes one optimizer step, however many micro-batches it gets."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            seen = int(answer[f"steps/{step}"])
            if seen != 1:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} made {seen} optimizer steps; expected 1.",
                    "Step once, after the last micro-batch's backward.",
                )


def equals_one_big_batch(trial: CaseTrial) -> None:
    """A step over micro-batches gives what one process gives on all of them concatenated."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(_off(trial, rank, step, wrong), _named(trial))


def steps_start_afresh(trial: CaseTrial) -> None:
    """Gradients of one step do not reach the next: they are cleared in between."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(_off(trial, rank, step, wrong), "Call `optimizer.zero_grad()` before the first micro-batch.")


def one_exchange_of_gradients(trial: CaseTrial) -> None:
    """Gradients are exchanged once a step: all micro-batches but the last run in `no_sync`."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            seen = int(answer[f"exchanges/{step}"])
            if seen != 1:
                raise Violation(
                    f"On rank {rank}, the wrapper averaged gradients {seen} times in {_call(trial, step)}; expected "
                    "once.",
                    "Leave averaging to the wrapper, and run forward and backward of all micro-batches but the last "
                    "inside `with ddp_model.no_sync():`.",
                )


def one_exchange_with_a_scaler(trial: CaseTrial) -> None:
    """With a scaler too, gradients are exchanged once a step."""
    one_exchange_of_gradients(trial)


def fewer_in_the_last_step(trial: CaseTrial) -> None:
    """A step may have fewer micro-batches than the one before, as the last one of an epoch has."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(
            _off(trial, rank, step, wrong),
            "Divide by the number of micro-batches of this call, `len(microbatches)`.",
        )


def leaves_the_modes(trial: CaseTrial) -> None:
    """Every module is left in the mode that it is in: a norm may be kept in evaluation mode while the rest trains."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            if not answer[f"modes/{step}"]:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} has changed the mode of the model, or of a module in it: "
                    "one was in evaluation mode.",
                    "Leave `train()` and `eval()` to whoever calls: a frozen norm would change its statistics.",
                )


def scaler_used(trial: CaseTrial) -> None:
    """With a scaler, the loss is scaled, the step goes through the scaler, and its scale is updated once a step."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(
            _off(trial, rank, step, wrong), _named(trial) or "Scale the loss, and step by `scaler.step(optimizer)`."
        )
    _hold_scale(trial)


def overflow_skips_the_step(trial: CaseTrial) -> None:
    """An infinite gradient on one rank skips the step on all of them, and halves the scale."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(
            f"With infinite gradients on rank {trial.case.overflow} in step 1, a step that is to be skipped: "
            f"{_off(trial, rank, step, wrong)}",
            _advice_on_overflow(trial, rank, step),
        )
    _hold_scale(trial)


def looks_for_overflow_when_finished(trial: CaseTrial) -> None:
    """A scaler looks for infinite gradients once they are finished: before, each rank would see its own alone."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(
            f"With infinite gradients on rank {trial.case.overflow} in step 1, and a wrapper that is not done when "
            f"backward returns: {_off(trial, rank, step, wrong)}",
            "Call `ddp_model.finish_gradient_synchronization()` before `scaler.unscale_(optimizer)` and "
            "`scaler.step(optimizer)`, or ranks disagree on the step.",
        )
    _hold_scale(trial)


def one_micro_batch_at_a_time(trial: CaseTrial) -> None:
    """Each micro-batch goes forward and backward by itself, before the next one: that is what saves memory."""
    for rank, answer in enumerate(trial.answers):
        forwards, alive = int(answer["forwards/0"]), int(answer["alive/0"])
        if forwards != trial.case.micro_batches or alive > 1:
            raise Violation(
                f"On rank {rank}, {_call(trial, 0)} called the wrapper {forwards} times, and {alive} forwards had no "
                "backward yet; expected one call for each, followed by its backward.",
                "Call `backward()` on each micro-batch's loss, before the next forward: activations of all of them "
                "take the memory of one big batch.",
            )


def forward_through_the_wrapper(trial: CaseTrial) -> None:
    """Forward runs through the wrapper and inside `no_sync`: torch's own decides there whether to synchronise."""
    for rank, answer in enumerate(trial.answers):
        seen = int(answer["exchanges/0"])
        if seen != 1:
            raise Violation(
                f"With a wrapper whose forward decides, gradients were exchanged {seen} times on rank {rank} in "
                f"{_call(trial, 0)}; expected once.",
                "Call `ddp_model(x)`, not the module in it, and call it inside `with ddp_model.no_sync():` as well.",
            )


def finishes_before_the_step(trial: CaseTrial) -> None:
    """`finish_gradient_synchronization` is called before the optimizer's step: until then, gradients are under way."""
    rank, step, wrong = _first_wrong(trial)
    if wrong:
        raise Violation(
            f"With a wrapper that is not done when backward returns: {_off(trial, rank, step, wrong)}",
            "Call `ddp_model.finish_gradient_synchronization()` after the last backward, before the step and before "
            "anything else that changes gradients, such as `scaler.unscale_`.",
        )


def leaves_the_micro_batches(trial: CaseTrial) -> None:
    """The list of micro-batches and the tensors in it are afterwards what they were: others may use them again."""
    for rank, answer in enumerate(trial.answers):
        for step in range(trial.case.steps):
            if not answer[f"left/{step}"]:
                raise Violation(
                    f"On rank {rank}, {_call(trial, step)} has changed the list that it was given, or a tensor in it.",
                    "Go through the list without taking anything out of it, and compute on copies, not in place.",
                )


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


def _off(trial: CaseTrial, rank: int, step: int, wrong: Mismatch) -> str:
    return (
        f"On rank {rank} after {_call(trial, step)}, the parameter `{wrong.name}` is not what one process on all of "
        f"them gives: it {wrong.words}."
    )


def _call(trial: CaseTrial, step: int) -> str:
    return f"step {step + 1} of {trial.case.steps} over {_micro_batches(trial, step)}"


def _micro_batches(trial: CaseTrial, step: int) -> str:
    number = trial.case.micro(step)
    return "1 micro-batch" if number == 1 else f"{number} micro-batches"
