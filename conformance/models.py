"""Builds the module that a `ModelSpec` describes, fills it and calls it: the same on the judge's side and on ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from conformance.data import Tensors, torch_dtype
from conformance.scenario import ModelSpec, Scenario

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "gelu": nn.functional.gelu,
    "relu": torch.relu,
}
Listener = Callable[[int], None]
GAIN = 1.5


class Perceptron(nn.Module):
    """A multilayer perceptron with the unusual parts that its spec asks for.

    Attributes:
        rank: the rank it computes for; a spec's branch may depend on it.
        listener: called in backward with a layer's index when backward reaches that layer's activation: the gradients
            of all later layers are then ready, those of that layer and of earlier ones are not.
    """

    listener: Listener | None = None
    offset: torch.Tensor
    mask: torch.Tensor

    def __init__(self, spec: ModelSpec, rank: int = 0) -> None:
        super().__init__()
        self.spec, self.rank = spec, rank
        self.activation = _ACTIVATIONS[spec.activation]
        self.layers = nn.ModuleList(_layers(spec))
        dtype = torch_dtype(spec.dtype)
        if spec.scale:
            self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        width = spec.layers[-1].outputs
        branches = {"none": 0, "order_by_rank": 2}.get(spec.branch, 1)
        self.branches = nn.ModuleList(nn.Linear(spec.inputs, width, bias=False, dtype=dtype) for _ in range(branches))
        if spec.buffer:
            self.register_buffer("offset", torch.zeros(width, dtype=dtype))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mask", torch.zeros(width, dtype=dtype), persistent=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in spec.frozen)

    def forward(self, x: torch.Tensor, *, gain: float = 1.0) -> torch.Tensor:
        """Map (samples, inputs) to (samples, outputs of the last layer)."""
        hidden = x
        for index, layer in enumerate(self.layers):
            hidden = layer(self._as_for(index, hidden))
            if index < len(self.layers) - 1:
                hidden = self.activation(hidden)
                self._listen(index, hidden)
        hidden = hidden.to(x.dtype) if self.spec.mixed else hidden
        for number, branch in self._branches():
            hidden = hidden + (number + 1) * branch(x)
        if self.spec.buffer:
            hidden = hidden + self.offset + self.mask
        return hidden * gain * (self.scale if self.spec.scale else 1.0)

    def _branches(self) -> list[tuple[int, nn.Module]]:
        """Return the branches that this rank uses, in its order; each has a weight of its own, lest they be alike."""
        used = self.spec.branch == "order_by_rank" or (self.spec.branch == "used_on_rank_0" and self.rank == 0)
        return list(enumerate(self.branches))[:: -1 if self.rank % 2 else 1] if used else []

    def _as_for(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """In a mixed model, what a layer takes; elsewhere a wrapper may compute in a dtype of its own choice."""
        return hidden.to(torch_dtype(self.spec.layers[index].dtype or self.spec.dtype)) if self.spec.mixed else hidden

    def _listen(self, index: int, hidden: torch.Tensor) -> None:
        listener = self.listener
        if listener is not None and hidden.requires_grad:
            hidden.register_hook(lambda _: listener(index))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _layers(spec: ModelSpec) -> Iterator[nn.Linear]:
    width, first = spec.inputs, None
    for index, layer in enumerate(spec.layers):
        dtype = torch_dtype(layer.dtype or spec.dtype)
        linear = nn.Linear(width, layer.outputs, bias=layer.bias, dtype=dtype)
        if index == spec.transposed:
            linear.weight = nn.Parameter(torch.empty(width, layer.outputs, dtype=dtype).t())
        if spec.tied and index == spec.tied[0]:
            first = linear.weight
        if spec.tied and index == spec.tied[1] and first is not None:
            linear.weight = first
        yield linear
        width = layer.outputs


@torch.no_grad()
def fill(model: torch.nn.Module, weights: Tensors, buffers: Tensors) -> None:
    """Write weights and buffers, by name, into a model."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def call(scenario: Scenario, model: Any, x: torch.Tensor) -> torch.Tensor:
    """Call a model, bare or wrapped, as the scenario says."""
    output: torch.Tensor = model(x, gain=GAIN) if scenario.model.keyword else model(x)
    return output


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error."""
    return torch.nn.functional.mse_loss(output, target)
