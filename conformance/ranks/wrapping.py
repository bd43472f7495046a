"""Builds a scenario's model on a rank and lets the submission wrap it, or two models beside each other."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.ranks.boundary import offers, stage
from conformance.ranks.context import Context
from conformance.ranks.loading import function
from conformance.ranks.parameters import Named, holder, parameters_by_name
from conformance.scenarios.scenario import LoadWeights
from conformance.workload.models import Perceptron, fill, loss_on
from conformance.workload.schedule import Schedule


def make_model(context: Context) -> Perceptron:
    """Return the model with this rank's weights and buffers; in float32, if float64 comes after wrapping."""
    model = Perceptron(context.scenario.model, dist.get_rank())
    if context.scenario.converted == "float64":
        model.float()
    fill(model, context.inputs.weights, context.inputs.buffers)
    return model


def wrap(context: Context, model: Perceptron) -> Any:
    """Return the model as the submission wraps it."""
    wrapper = context.task.contract.wrapper
    if wrapper is None:
        return model
    more = [context.scenario.bucket_size_mb] if wrapper.takes_bucket_size else []
    with stage(wrapper.get.name):
        return function(context.adapters, wrapper.get)(model, *more)


def convert(context: Context, wrapped: Any, model: Perceptron) -> None:
    """Convert a wrapped model in place, if the scenario asks for it; the model inside, if the wrapper has no `to`."""
    owner, into = wrapped if offers(wrapped, "to") else bare_model(wrapped, model), context.scenario.converted
    if into == "float64":
        with stage("`to(torch.float64)` of the wrapped model"):
            owner.to(torch.float64)
    if into == "channels_last":
        with stage("`to(memory_format=torch.channels_last)` of the wrapped model"):
            owner.to(memory_format=torch.channels_last)


class SavedWeights:
    """The `state_dict` of a wrapped model before training, if it has one and the scenario loads it again."""

    def __init__(self, context: Context, wrapped: Any) -> None:
        self._wrapped = wrapped
        self.offered = offers(wrapped, "state_dict", "load_state_dict")
        loaded = any(isinstance(event, LoadWeights) for event in context.scenario.schedule)
        with stage("`state_dict` of the wrapped model"):
            self._saved = deepcopy(wrapped.state_dict()) if self.offered and loaded else None

    def load(self) -> None:
        """Load the state into the wrapped model."""
        if self.offered:
            self._wrapped.load_state_dict(self._saved)


class Twin:
    """A second wrapped model with the same numbers, which are never updated: neither may change the other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._hooks = context.task.contract.wrapper or context.task.contract
        model = make_model(context)
        before = dict(model.named_parameters())
        self._wrapped = wrap(context, model)
        with stage("a look at the parameters of a second wrapped model"):
            self.named: Named = parameters_by_name(self._wrapped, tuple(context.scenario.model.shapes), before)[0]
        self._optimizer = torch.optim.SGD(self.named.values())

    def forward(self, step: int) -> torch.Tensor:
        """Start a training step, and return the loss of the first batch."""
        self._call(self._hooks.batch_start, "on_train_batch_start", step)
        self._optimizer.zero_grad()
        with stage("forward of a second model", step):
            return loss_on(self._context.scenario, self._wrapped, self._context.inputs.batches[0])

    def backward(self, loss: torch.Tensor, step: int) -> None:
        """Compute the gradients of that loss, and let the submission average them."""
        with stage("backward of a second model", step):
            torch.autograd.backward(loss)
        self._call(self._hooks.after_backward, "on_after_backward", step)

    def _call(self, hook: Any, name: str, step: int) -> None:
        with stage(f"{name} of a second model", step):
            function(self._context.adapters, hook)(self._wrapped, self._optimizer)


class SecondOptimizer:
    """A second sharded optimizer, of copies of the parameters: neither may change the other.

    It is made after the first, gets the same gradients by a backward pass of its own, and steps before the first.
    """

    def __init__(self, context: Context, named: Named, make: Callable[..., torch.optim.Optimizer]) -> None:
        self._context = context
        self.named: Named = {name: nn.Parameter(p.detach().clone(), p.requires_grad) for name, p in named.items()}
        with stage("construction of a second optimizer"):
            self._optimizer = Schedule(context.scenario, self.named, make, lambda: None).optimizer

    def step(self, named: Named, step: int) -> None:
        """Step with the gradients of the first optimizer's parameters."""
        with stage("`zero_grad` of a second optimizer", step):
            self._optimizer.zero_grad()
        gradients = ((p, named[name].grad) for name, p in self.named.items())
        products = [(p * gradient).sum() for p, gradient in gradients if gradient is not None]
        with stage("the step of a second optimizer", step):
            torch.autograd.backward(products)
            self._optimizer.step()


def bare_model(wrapped: Any, model: Perceptron) -> Perceptron:
    """Return the model inside the wrapper, which may be a copy of the one that was wrapped."""
    held = holder(wrapped)
    modules = held.modules() if offers(held, "modules") else ()
    return next((module for module in modules if isinstance(module, Perceptron)), model)
