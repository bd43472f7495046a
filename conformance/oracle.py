"""What training must give: one process, plain torch, the batches of all ranks concatenated."""

from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.data import RankInputs, Tensors, global_batch
from conformance.models import Perceptron, call, fill, loss_of
from conformance.scenario import Scenario
from conformance.schedule import Schedule


@dataclass
class Trajectory:
    """A training run: parameters before it, then gradients, parameters and loss of each step.

    Attributes:
        start: parameters before step 0.
        gradients: per step, those of the parameters that have one.
        parameters: per step, after it.
        losses: per step, before it.
        state_bytes: bytes of optimizer state at the end, by parameter; counters of steps are left out.
    """

    start: Tensors
    gradients: list[Tensors] = field(default_factory=list)
    parameters: list[Tensors] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    state_bytes: dict[str, int] = field(default_factory=dict)

    def before(self, step: int) -> Tensors:
        """Return the parameters right before a step."""
        return self.parameters[step - 1] if step else self.start


def train(scenario: Scenario, inputs: list[RankInputs]) -> Trajectory:
    """Train from rank 0's weights on the concatenated batches."""
    model = _model(scenario, inputs[0])
    named = dict(model.named_parameters())
    run = Trajectory(_values(named))
    plan = Schedule(scenario, named, lambda params, optimizer_cls, **options: optimizer_cls(params, **options))
    for step in range(scenario.steps):
        plan.before_step(step)
        model.zero_grad()
        loss = _loss(scenario, model, inputs, step)
        torch.autograd.backward(loss)
        run.gradients.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        plan.optimizer.step()
        plan.after_step()
        run.parameters.append(_values(named))
        run.losses.append(float(loss.detach()))
    run.state_bytes = {name: _state_bytes(plan.optimizer.state.get(p, {})) for name, p in named.items()}
    return run


def shard_gradients(scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, step: int) -> list[Tensors]:
    """Return the gradients that each rank's own batch gives at a step, with the oracle's parameters before it."""
    found = []
    for rank, own in enumerate(inputs):
        model = Perceptron(scenario.model, rank)
        fill(model, expected.before(step), own.buffers)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in expected.gradients[step])
        x, y = own.batches[step]
        torch.autograd.backward(loss_of(call(scenario, model, x), y))
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    return found


def _model(scenario: Scenario, own: RankInputs) -> Perceptron:
    model = Perceptron(scenario.model)
    fill(model, own.weights, own.buffers)
    return model


def _loss(scenario: Scenario, model: Perceptron, inputs: list[RankInputs], step: int) -> torch.Tensor:
    if scenario.replicated:
        x, y = inputs[0].batches[step]
        return loss_of(call(scenario, model, x), y)
    x, y = global_batch(inputs, step)
    if scenario.model.branch not in {"used_on_rank_0", "order_by_rank"}:
        return loss_of(call(scenario, model, x), y)
    outputs = []
    for rank, own in enumerate(inputs):
        model.rank = rank
        outputs.append(call(scenario, model, own.batches[step][0]))
    return loss_of(torch.cat(outputs), y)


def _values(named: dict[str, torch.nn.Parameter]) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def _state_bytes(state: dict[str, Any]) -> int:
    tensors = [value for key, value in state.items() if key != "step" and isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
