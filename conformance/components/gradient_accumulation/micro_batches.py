"""What steps over micro-batches give in one process, right, and by known mistakes."""

from collections.abc import Callable

import torch

from conformance.checks.trial import CaseTrial
from conformance.components.gradient_accumulation.averaging_wrapper import unsymmetric_loss
from conformance.components.gradient_accumulation.case import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.workload.numbers import Tensors

Gradients = list[list[Tensors]]  # by rank, then by micro-batch
Combine = Callable[[Gradients, int], Tensors]  # what a rank makes of them
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train(trial: CaseTrial, combine: Combine, rank: int = 0, loss_fn: Loss = unsymmetric_loss) -> list[Tensors]:
    """Train as a rank does that combines gradients so; return its parameters after each step."""
    parameters = {name: value for name, value in trial.given[0].items() if name[0] not in "xy"}
    velocity, found = {name: torch.zeros_like(value) for name, value in parameters.items()}, []
    for step in range(trial.case.steps):
        if not trial.case.overflows(step):
            gradients = combine([_gradients(trial, given, parameters, step, loss_fn) for given in trial.given], rank)
            decayed = {name: gradients[name] + WEIGHT_DECAY * value for name, value in parameters.items()}
            velocity = {name: decayed[name] + MOMENTUM * value for name, value in velocity.items()}
            parameters = {name: value - LEARNING_RATE * velocity[name] for name, value in parameters.items()}
        found.append(parameters)
    return found


def _gradients(trial: CaseTrial, given: Tensors, parameters: Tensors, step: int, loss_fn: Loss) -> list[Tensors]:
    """Return the gradients that each of a rank's micro-batches gives, weighted by its number of samples."""
    found = []
    for micro in range(trial.case.micro(step)):
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        hidden = torch.tanh(given[f"x/{step}/{micro}"] @ leaves["0.weight"].T + leaves["0.bias"])
        output = hidden @ leaves["2.weight"].T + leaves["2.bias"]
        loss = loss_fn(output, given[f"y/{step}/{micro}"]) * trial.case.weight(step, micro)
        found.append(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))
    return found


def mean(gradients: Gradients, _: int = 0, *, factor: float = 1.0) -> Tensors:
    """Return the mean over all micro-batches of all ranks, which is right, times a factor, which is wrong."""
    parts = [one for own in gradients for one in own]
    return {name: factor * torch.stack([one[name] for one in parts]).mean(0) for name in parts[0]}


def _last(gradients: Gradients) -> Gradients:
    return [own[-1:] for own in gradients]


def _first_exchanged(gradients: Gradients, rank: int) -> Tensors:
    """Average the first micro-batch over the ranks, and add the rank's own of the others."""
    number, average = len(gradients[rank]), mean([own[:1] for own in gradients])
    return {name: (value + sum(one[name] for one in gradients[rank][1:])) / number for name, value in average.items()}


MISTAKES: dict[str, Combine] = {
    "losses summed over micro-batches, never divided by their number": lambda g, _: mean(g, factor=len(g[0])),
    "losses divided by the number of micro-batches twice": lambda g, _: mean(g, factor=1 / len(g[0])),
    "only the last micro-batch used": lambda g, _: mean(_last(g)),
    "only the last micro-batch used, and divided by their number": lambda g, _: mean(_last(g), factor=1 / len(g[0])),
    "the first micro-batch exchanged, and the later ones not: the last one must run outside `no_sync`": (
        _first_exchanged
    ),
    "losses divided by the number of ranks, which the wrapper does": lambda g, _: mean(g, factor=1 / len(g)),
    "gradients left scaled": lambda g, _: mean(g, factor=SCALE),
    "gradients never exchanged: each rank trains alone": lambda g, rank: mean([g[rank]]),
    "gradients never exchanged, losses never divided": lambda g, rank: mean([g[rank]], factor=len(g[rank])),
}
