"""Assertions about what a wrapper does with the model besides averaging its gradients, and about its `no_sync`."""

import torch

from conformance.checks.check import NotOffered, Violation
from conformance.checks.steps import none_noted
from conformance.checks.traffic import of_the_model
from conformance.checks.training import gradients_averaged, trains
from conformance.checks.trial import Trial
from conformance.checks.words import listed, step_words
from conformance.scenarios.layers import Position
from conformance.scenarios.scenario import LoadWeights


def buffers_broadcast(trial: Trial) -> None:
    """Hold buffers right after wrapping to rank 0's, dtypes included, and gradients to those of a model with them."""
    for rank, seen in enumerate(trial.observations):
        for name, wanted in trial.inputs[0].buffers.items():
            value = seen.buffers.get(name)
            where = f"Right after wrapping, the buffer `{name}` on rank {rank}"
            if value is not None and value.dtype != wanted.dtype:
                raise Violation(
                    f"{where} has the dtype {value.dtype}; expected {wanted.dtype}, as in the module.",
                    "Send each buffer in its own dtype, and write into it in place.",
                )
            if value is None or not torch.equal(value, wanted):
                raise Violation(
                    f"{where} is not rank 0's: seen {value if value is None else value.tolist()}, expected "
                    f"{wanted.tolist()}.",
                    "Broadcast `module.buffers()` as well as `module.parameters()`.",
                )
    try:
        gradients_averaged(trial)
    except Violation as wrong:
        raise Violation(
            f"{wrong} The model adds its buffers to its output; right after wrapping, they were rank 0's.",
            "Does the wrapper's forward change buffers? Leave them alone, or copy rank 0's.",
        ) from None


gradients_stay_none = none_noted(
    "early_gradients",
    "{names} had a gradient already right after wrapping; expected None.",
    "Do not touch `.grad` before backward has been there: buffers for communication can be made apart.",
)


def calls_the_model(trial: Trial) -> None:
    """Hold each forward to one call of the model, with its hooks, in the mode that was asked for."""
    made = trial.scenario.steps * (2 if trial.scenario.evaluates else 1)
    for rank, seen in enumerate(trial.observations):
        if seen.wrong_modes:
            asked = "evaluation" if seen.wrong_modes[0] == "training" else "training"
            raise Violation(
                f"On rank {rank}, a forward in {asked} mode ran with the model in {seen.wrong_modes[0]} mode.",
                "A wrapper that is an `nn.Module` with the model as a submodule passes `train()` and `eval()` on by "
                "itself: override neither, and call neither.",
            )
        if seen.forwards != made:
            raise Violation(
                f"On rank {rank}, the model was called {seen.forwards} times in {made} forwards of the wrapped model.",
                "Let the wrapper's `forward` return `self.module(*args, **kwargs)`: `self.module.forward(...)` passes "
                "over the model's hooks, and a second call moves dropout and running statistics once more.",
            )


def trains_loaded_weights(trial: Trial) -> None:
    """Hold training to one process where the wrapped model loads a `state_dict`, if it has one."""
    if not all(seen.offers_state_dict for seen in trial.observations):
        raise NotOffered("the wrapped model has no `state_dict`")
    loaded = next(event.step for event in trial.scenario.schedule if isinstance(event, LoadWeights))
    for step in range(loaded, trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            if lost := [name for name in trial.expected.gradients[step] if name not in seen.gradients(step)]:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, after `load_state_dict` of the wrapped "
                    f"model, {listed(lost)} had no gradient: the optimizer's parameters are no longer the model's.",
                    "Load into the parameters in place, as `nn.Module.load_state_dict` does without `assign=True`.",
                )
    trains(trial)


def trains_in_float64(trial: Trial) -> None:
    """Hold training in float64 to one process, also where the wrapped model is converted to float64."""
    if trial.scenario.converted == "nothing":
        _trains(trial, "Keep buffers in the dtype of the gradients that they carry: `torch.empty(n, dtype=p.dtype)`.")
    else:
        _trains(
            trial,
            "It goes wrong after the wrapped model was converted from float32 to float64 (`wrapped.double()`). "
            "Autograd then has new nodes for the parameters: hooks on the old ones never run. Register hooks by "
            "`register_post_accumulate_grad_hook`, make buffers when gradients come, or raise an exception.",
        )


def trains_recomputed(trial: Trial) -> None:
    """Hold training to one process where a layer that is computed again in backward may run twice."""
    advice = (
        "A layer under reentrant checkpointing runs twice, so backward adds to its gradients twice, and the wrapper "
        "takes the first time for the whole. Send such a gradient again, or raise an exception."
    )
    _trains(trial, advice if trial.scenario.model.reentrant else "")


def trains_other_layers(trial: Trial) -> None:
    """Hold training to one process for other layers, and for parameters that are added to an activation."""
    advice = (
        "Autograd hands one tensor to a parameter that is added to an activation and to the layers before it. A hook "
        "that changes this tensor in place (`register_hook`) changes their gradients too: return a new tensor, or "
        "average `.grad` once it is stored (`register_post_accumulate_grad_hook`)."
    )
    _trains(trial, advice if any(isinstance(one, Position) for one in trial.scenario.model.layers) else "")


def trains_any_shape(trial: Trial) -> None:
    """Hold training to one process where a parameter has an unusual shape or layout."""
    model = trial.scenario.model
    if trial.scenario.converted == "channels_last":
        advice = (
            "It goes wrong after the wrapped model was converted to channels last. Make buffers when gradients come, "
            "with the strides of the gradients that they carry, or raise an exception."
        )
    elif model.gapped is not None:
        advice = "A weight has gaps between its rows: send a contiguous copy, and copy the result back."
    else:
        advice = "A parameter has no elements." if model.empty else ""  # the diagnosis knows mistakes of complex ones
    _trains(trial, advice)


def _trains(trial: Trial, advice: str) -> None:
    """Hold training to one process; a violation without advice of its own gets this one."""
    try:
        trains(trial)
    except Violation as wrong:
        raise Violation(wrong.message, wrong.advice or advice) from None


def trains_through_module(trial: Trial) -> None:
    """Hold training to one process where forward is called on the wrapper's `module`, if it has one."""
    if not all(seen.offers_module for seen in trial.observations):
        raise NotOffered("the wrapped model has no `module`")
    trains(trial)


def overflow_reaches_every_rank(trial: Trial) -> None:
    """Hold gradients that are infinite or NaN on one rank to being so on all."""
    broken = [name for name, value in trial.expected.gradients[0].items() if not bool(value.isfinite().all())]
    for rank, seen in enumerate(trial.observations):
        found = seen.gradients(0)
        hidden = [name for name in broken if name not in found or bool(found[name].isfinite().all())]
        if hidden:
            raise Violation(
                f"Rank {trial.scenario.world_size - 1} has infinite losses; on rank {rank}, the gradients of "
                f"{listed(hidden)} are finite all the same, or there are none.",
                "Average what there is: put no number in place of what is infinite or NaN, and leave nobody out.",
            )


def range_of_float16(trial: Trial) -> None:
    """Hold the average of large float16 gradients to being finite and right, though their sum is infinite."""
    for rank, seen in enumerate(trial.observations):
        for name, gradient in seen.gradients(0).items():
            if not torch.isfinite(gradient).all():
                own = float(trial.expected.gradients[0][name].abs().max())
                raise Violation(
                    f"On rank {rank}, the average of the float16 gradients of `{name}` is not finite: seen "
                    f"{gradient.tolist()}, though it is no larger than {own:.0f}; float16 holds up to 65504.",
                    "Divide by the number of ranks before adding up, not afterwards, or send gradients in float32.",
                )
    gradients_averaged(trial)


def accumulates_without_sending(trial: Trial) -> None:
    """Hold passes under `no_sync` to sending nothing, and training to one process."""
    if not all(seen.offers_no_sync for seen in trial.observations):
        raise NotOffered("the wrapped model has no `no_sync`")
    for step in range(trial.scenario.steps if trial.scenario.world_size > 1 else 0):
        for rank, seen in enumerate(trial.observations):
            whats = [one.what for one in seen.happenings[step]]
            *_, last_lazy, _ = (at for at, what in enumerate(whats) if what == "returned")
            lazy = seen.happenings[step][whats.index("began") : last_lazy]
            if early := [one for one in lazy if of_the_model(one, trial.scenario)]:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, gradients were sent under `no_sync`: "
                    f"{early[0].op}, and {len(early) - 1} further collectives.",
                    "Under `no_sync` gradients only add up in `.grad`: let the hooks do nothing.",
                )
    trains(trial)
