"""Checks of gradient accumulation: one step over several micro-batches is one step over their concatenation."""

from collections.abc import Callable

import torch

from conformance.checks.check import CaseTrial, Mismatch, Violation, first_mismatch
from conformance.data import Tensors
from conformance.feed import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.replicated import unsymmetric_loss

Gradients = list[list[Tensors]]  # by rank, then by micro-batch
Combine = Callable[[Gradients], Tensors]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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
            "Call `ddp_model.finish_gradient_synchronization()` after the last backward, before the step.",
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
        expected *= 0.5 if _overflows(trial, step) else 2.0
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
    for step, wanted in enumerate(_train(trial, _mean)):
        for rank, answer in enumerate(trial.answers):
            wrong = first_mismatch(_after(answer, step), wanted)
            if wrong:
                return rank, step, wrong
    return 0, 0, None


def _named(trial: CaseTrial) -> str:
    """Return which known mistake gives what was seen."""
    last = trial.case.steps - 1
    fits = [words for words, combine in _MISTAKES.items() if _is_as_by(trial, _train(trial, combine)[last])]
    if fits:
        return f"Looks like *{'* or *'.join(fits)}*."
    if _is_as_by(trial, _train(trial, _mean, lambda output, target: unsymmetric_loss(target, output))[last]):
        return "Looks like *the loss's arguments swapped*: call `loss_fn(output, target)`."
    for words, combine in _OWN_MISTAKES.items():
        own = (
            _train(trial, lambda gradients, rank=rank, combine=combine: combine([gradients[rank]]))[last]  # type: ignore[misc]
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


def _train(trial: CaseTrial, combine: Combine, loss_fn: Loss = unsymmetric_loss) -> list[Tensors]:
    """Train in one process with what `combine` makes of a loss's gradients; return the parameters after each step."""
    parameters = {name: value for name, value in trial.given[0].items() if name[0] not in "xy"}
    velocity, found = {name: torch.zeros_like(value) for name, value in parameters.items()}, []
    for step in range(trial.case.steps):
        if not _overflows(trial, step):
            gradients = combine([_gradients(trial, given, parameters, step, loss_fn) for given in trial.given])
            first = step == 0
            decayed = {name: gradients[name] + WEIGHT_DECAY * value for name, value in parameters.items()}
            velocity = {n: decayed[n] + (0.0 if first else MOMENTUM) * v for n, v in velocity.items()}
            parameters = {name: value - LEARNING_RATE * velocity[name] for name, value in parameters.items()}
        found.append(parameters)
    return found


def _gradients(trial: CaseTrial, given: Tensors, parameters: Tensors, step: int, loss_fn: Loss) -> list[Tensors]:
    """Return the gradients that each of a rank's micro-batches gives."""
    found = []
    for micro in range(trial.case.micro(step)):
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        hidden = torch.tanh(given[f"x/{step}/{micro}"] @ leaves["0.weight"].T + leaves["0.bias"])
        output = hidden @ leaves["2.weight"].T + leaves["2.bias"]
        loss = loss_fn(output, given[f"y/{step}/{micro}"])
        found.append(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))
    return found


def _mean(gradients: Gradients) -> Tensors:
    parts = [one for own in gradients for one in own]
    return {name: torch.stack([one[name] for one in parts]).mean(0) for name in parts[0]}


def _times(gradients: Tensors, factor: float) -> Tensors:
    return {name: factor * value for name, value in gradients.items()}


def _last(gradients: Gradients) -> Gradients:
    return [own[-1:] for own in gradients]


_MISTAKES: dict[str, Combine] = {
    "losses summed over micro-batches, never divided by their number": lambda g: _times(_mean(g), len(g[0])),
    "losses divided by the number of micro-batches twice": lambda g: _times(_mean(g), 1 / len(g[0])),
    "only the last micro-batch used": lambda g: _mean(_last(g)),
    "only the last micro-batch used, and divided by their number": lambda g: _times(_mean(_last(g)), 1 / len(g[0])),
    "losses divided by the number of ranks, which the wrapper does": lambda g: _times(_mean(g), 1 / len(g)),
    "gradients left scaled": lambda g: _times(_mean(g), SCALE),
}
_OWN_MISTAKES: dict[str, Combine] = {
    "gradients never exchanged: each rank trains alone": _mean,
    "gradients never exchanged, losses never divided": lambda g: _times(_mean(g), len(g[0])),
}


def _overflows(trial: CaseTrial, step: int) -> bool:
    return step == 0 and trial.case.overflow >= 0


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
