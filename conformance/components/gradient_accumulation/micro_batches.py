"""What steps over micro-batches give in one process, right, and by known mistakes."""

from collections.abc import Callable

import torch

from conformance.checks.trial import CaseTrial
from conformance.components.gradient_accumulation.averaging_wrapper import unsymmetric_loss
from conformance.components.gradient_accumulation.numbers import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.workload.numbers import Tensors

Gradients = list[list[Tensors]]  # by rank, then by micro-batch
Combine = Callable[[Gradients], Tensors]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train(trial: CaseTrial, combine: Combine, loss_fn: Loss = unsymmetric_loss) -> list[Tensors]:
    """Train in one process with what `combine` makes of a loss's gradients; return the parameters after each step."""
    parameters = {name: value for name, value in trial.given[0].items() if name[0] not in "xy"}
    velocity, found = {name: torch.zeros_like(value) for name, value in parameters.items()}, []
    for step in range(trial.case.steps):
        if not overflows(trial, step):
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


def mean(gradients: Gradients) -> Tensors:
    """Return the mean over all micro-batches of all ranks, which is right."""
    parts = [one for own in gradients for one in own]
    return {name: torch.stack([one[name] for one in parts]).mean(0) for name in parts[0]}


def _times(gradients: Tensors, factor: float) -> Tensors:
    return {name: factor * value for name, value in gradients.items()}


def _last(gradients: Gradients) -> Gradients:
    return [own[-1:] for own in gradients]


MISTAKES: dict[str, Combine] = {
    "losses summed over micro-batches, never divided by their number": lambda g: _times(mean(g), len(g[0])),
    "losses divided by the number of micro-batches twice": lambda g: _times(mean(g), 1 / len(g[0])),
    "only the last micro-batch used": lambda g: mean(_last(g)),
    "only the last micro-batch used, and divided by their number": lambda g: _times(mean(_last(g)), 1 / len(g[0])),
    "losses divided by the number of ranks, which the wrapper does": lambda g: _times(mean(g), 1 / len(g)),
    "gradients left scaled": lambda g: _times(mean(g), SCALE),
}
OWN_MISTAKES: dict[str, Combine] = {
    "gradients never exchanged: each rank trains alone": mean,
    "gradients never exchanged, losses never divided": lambda g: _times(mean(g), len(g[0])),
}


def overflows(trial: CaseTrial, step: int) -> bool:
    """Return whether a rank has infinite gradients in a step, which nobody is to make then."""
    return step == 0 and trial.case.overflow >= 0
