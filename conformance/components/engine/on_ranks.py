"""Trains with an engine: its forward, its `backward(loss)` and its `step()`; asks for whole parameters in between."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from conformance.protocol.messages import Happening, Observation
from conformance.ranks.boundary import offers, stage
from conformance.ranks.context import Context
from conformance.ranks.loading import function
from conformance.ranks.optimizer_memory import bytes_of_state, optimizers_alive
from conformance.ranks.parameters import hooks_on, plain, take_hooks_off, whole_by_name
from conformance.ranks.tracing import alive, noting
from conformance.ranks.wrapping import make_model
from conformance.workload.models import Perceptron, call, loss_on
from conformance.workload.numbers import Tensors
from conformance.workload.schedule import OPTIMIZERS


def train(context: Context) -> Observation:
    """Train as the scenario says; return what was seen."""
    earlier = optimizers_alive()
    training = _Training(context, [_Engine(context) for _ in range(2 if context.scenario.twins else 1)])
    try:
        return training.observe(earlier)
    finally:
        take_hooks_off(p for one in training.engines for p in one.model.parameters())


class _Engine:
    """The engine that the submission makes of a model, and the model."""

    def __init__(self, context: Context) -> None:
        self._context, self.model = context, make_model(context)
        spec, make = context.scenario.optimizer, context.task.contract.get
        with stage(f"`{make.name}`"):
            made = function(context.adapters, make)
            self.engine: Any = made(self.model, OPTIMIZERS[spec.kind], **spec.options)

    def whole(self) -> Tensors:
        """Return the whole parameters, by the model's own names; raise ValueError if one is missing."""
        names = self._context.scenario.model.shapes
        with stage("`full_parameters`"):
            found = self.engine.full_parameters()
            whole = whole_by_name(found, names)
            if absent := [name for name in names if name not in whole]:
                raise ValueError(f"there is no parameter {absent[0]!r}; there are {', '.join(found) or 'none'}")
            return whole

    def loss(self, micro: Sequence[int], step: int) -> torch.Tensor:
        """Run forward on these micro-batches; return the sum of their losses, weighted by this rank's samples."""
        scenario, batches = self._context.scenario, self._context.inputs.batches
        losses = []
        with stage("forward", step):
            for one in micro:
                self.model.first = scenario.is_first(one)
                losses.append(loss_on(scenario, self.engine, batches[one]) * scenario.weight(dist.get_rank()))
            return torch.stack(losses).sum()

    def evaluate(self, step: int) -> torch.Tensor:
        """Return the output for the step's first batch, in evaluation mode and without gradients."""
        scenario = self._context.scenario
        switched = self.engine if offers(self.engine, "train", "eval") else self.model
        with stage("forward in evaluation mode", step), torch.no_grad():
            switched.eval()
            output = call(scenario, self.engine, self._context.inputs.batches[scenario.micro(step)[0]][0]).clone()
            switched.train()
        return output


@dataclass
class _Training:
    """A training on one rank, of one engine or of two side by side."""

    context: Context
    engines: list[_Engine]
    tensors: Tensors = field(default_factory=dict)

    def observe(self, earlier: Sequence[torch.optim.Optimizer]) -> Observation:
        """Train; the state of optimizers that are not among the earlier ones is the engine's."""
        seen, scenario = Observation(self.tensors), self.context.scenario
        self._keep("wrapped", self.engines[0].whole())
        for step in range(scenario.steps):
            happened: list[Happening] = []
            for one in self.engines:
                one.model.step = step
            if scenario.evaluates:
                self._keep(f"evaluation/{step}", {"output": self.engines[0].evaluate(step)})
            with noting(happened, scenario):
                seen.losses.append(self._step(step))
            seen.happenings.append(happened)
            for prefix, one in zip(("parameter", "twin"), self.engines, strict=False):
                self._keep(f"{prefix}/{step}", one.whole())
            seen.hooks.append(hooks_on(_parameters(self.engines[0].model)))
            if scenario.counted:
                seen.alive.append(alive() - len(self.tensors))
        with stage("a look at the optimizer's state"):
            held = bytes_of_state(one for one in optimizers_alive() if not any(one is other for other in earlier))
        return Observation(**{**vars(seen), "state_bytes": held})

    def _step(self, step: int) -> float:
        """Run forward, backward and step of each engine, those of a second one in between; return the loss."""
        micro, total = self.context.scenario.micro(step), 0.0
        for together in [tuple(micro)] if self.context.scenario.joined else [(one,) for one in micro]:
            losses = [one.loss(together, step) for one in self.engines]
            total += float(losses[0].detach())
            for one, loss in zip(self.engines, losses, strict=True):
                with stage("`backward`", step):
                    one.engine.backward(loss)
        for one in self.engines:
            with stage("`step`", step):
                one.engine.step()
        return total

    def _keep(self, moment: str, tensors: Tensors) -> None:
        self.tensors |= {f"{moment}/{name}": plain(value) for name, value in tensors.items()}


def _parameters(model: Perceptron) -> list[torch.nn.Parameter]:
    return list(model.parameters())
