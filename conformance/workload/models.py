"""Builds, fills and calls the module that a `ModelSpec` describes: the same in the judge's process and on ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.scenarios.layers import Again, Layer, Magnitude, construction, dtype_of
from conformance.scenarios.model_spec import BRANCHES, ModelSpec, Output
from conformance.scenarios.scenario import Scenario
from conformance.workload import modules
from conformance.workload.numbers import Batch, Tensors, torch_dtype

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "gelu": nn.functional.gelu,
    "relu": torch.relu,
}
Listener = Callable[[int], None]
GAIN = 1.5
GAIN_OF_NONE = 0.5


class Given(NamedTuple):
    """The input of a model with named tuples."""

    x: torch.Tensor
    gain: float


class Result(NamedTuple):
    """The output of a model with named tuples."""

    output: torch.Tensor


@dataclass
class Results:
    """The output of a model that returns a dataclass."""

    output: torch.Tensor


class Opaque:
    """The output of a model that returns an object of its own, in which nobody looks for tensors."""

    def __init__(self, output: torch.Tensor) -> None:
        self.output = output


_HOLDERS: dict[Output, Callable[[torch.Tensor], Any]] = {"dataclass": Results, "object": Opaque}


class Perceptron(nn.Module):
    """A sequence of layers, with the extra parts that the spec asks for.

    Attributes:
        rank, step, first: the current rank and step, and whether this is the step's first micro-batch; which branch
            runs may depend on them.
        listener: called in backward with a layer's index when backward reaches that layer's activation. Then the
            gradients of all later layers are ready, and those of this layer and of earlier ones are not.
    """

    listener: Listener | None = None
    offset: torch.Tensor
    mask: torch.Tensor

    def __init__(self, spec: ModelSpec, rank: int = 0) -> None:
        super().__init__()
        self.spec, self.rank, self.step, self.first = spec, rank, 0, True
        self.activation = _ACTIVATIONS[spec.activation]
        self.layers, layers = nn.ModuleList(), _layers(spec)
        for index in spec.registered or range(len(layers)):
            self.layers.add_module(str(index), layers[index])
        dtype = torch_dtype(spec.dtype)
        if spec.scale:
            self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        if spec.empty:
            self.empty = nn.Parameter(torch.empty(0, 3, dtype=dtype))
        width = spec.widths[-1]
        branches = BRANCHES.get(spec.branch, 1)
        self.branches = nn.ModuleList(nn.Linear(spec.inputs, width, bias=False, dtype=dtype) for _ in range(branches))
        if spec.buffer:
            self.register_buffer("offset", torch.zeros(width, dtype=dtype))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mask", torch.zeros(width, dtype=dtype), persistent=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in spec.frozen)

    def forward(self, features: Any, gain: float | None = 1.0) -> Any:
        """Map (samples, inputs) to (samples, outputs); token ids (samples, inputs) to (samples, inputs, outputs).

        A nested model maps {"batch": (features, gain)} to {"output": output}; a named model maps `Given` to `Result`.
        """
        if self.spec.nested:
            x, gain = features["batch"]
            return {"output": self._compute(x, gain)}
        if self.spec.named:
            return Result(self._compute(features.x, features.gain))
        output = self._compute(features, GAIN_OF_NONE if gain is None else gain)
        return _HOLDERS[self.spec.output](output) if self.spec.output in _HOLDERS else output

    def _compute(self, x: torch.Tensor, gain: float) -> torch.Tensor:
        hidden = x.clone().requires_grad_() if self._has_reentrant_layers else x
        for index in range(len(self.layers)):
            hidden = self._through(self.layers[index], self._as_for(index, hidden))
            if index < len(self.layers) - 1:
                hidden = self.activation(hidden)
                self._listen(index, hidden)
        hidden = hidden.to(x.dtype) if self.spec.mixed else hidden
        for number, branch in self._branches():
            hidden = hidden + (number + 1) * branch(x)
        if self.spec.buffer:
            hidden = hidden + self.offset + self.mask
        if self.spec.empty:
            hidden = hidden + self.empty.sum()
        return hidden * gain * (self.scale if self.spec.scale else 1.0)

    def _through(self, layer: nn.Module, hidden: torch.Tensor) -> Any:
        if self.spec.recomputed and torch.is_grad_enabled():
            return checkpoint(layer, hidden, use_reentrant=self.spec.reentrant)
        return layer(hidden)

    @property
    def _has_reentrant_layers(self) -> bool:
        """Whether forward recomputes by the reentrant kind, which needs an input that requires a gradient."""
        return self.spec.reentrant and torch.is_grad_enabled()

    def _branches(self) -> list[tuple[int, nn.Module]]:
        """Return the branches that run now, in order, with their numbers, which weight them differently."""
        if self.spec.branch == "one_each":
            return [(self.rank % 2, self.branches[self.rank % 2])]
        now = {"order_by_rank", f"used_on_rank_{self.rank}", f"used_in_{'odd' if self.step % 2 else 'even'}_steps"}
        now |= {"used_in_turn"} if (self.rank + self.step) % 2 == 0 else set()
        used = self.spec.branch in now | ({"used_in_first_micro_batch"} if self.first else set())
        return list(enumerate(self.branches))[:: -1 if self.rank % 2 else 1] if used else []

    def _as_for(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Cast to the layer's dtype in a mixed model; in other models the wrapper may choose the dtype."""
        own = dtype_of(self.spec.layers[index]) or self.spec.dtype
        return hidden.to(torch_dtype(own)) if self.spec.mixed else hidden

    def _listen(self, index: int, hidden: torch.Tensor) -> None:
        listener = self.listener
        if listener is not None and hidden.requires_grad:
            hidden.register_hook(lambda _: listener(index))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _layers(spec: ModelSpec) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for index, (layer, width) in enumerate(zip(spec.layers, spec.widths, strict=False)):
        if isinstance(layer, Again):
            layers.append(layers[layer.layer])
            continue
        module = _module(layer, width)
        if not isinstance(layer, Magnitude):  # complex from the start
            module = module.to(torch_dtype(dtype_of(layer) or spec.dtype))
        if index == spec.transposed:
            module.weight = nn.Parameter(torch.empty_like(module.weight.mT, memory_format=torch.contiguous_format).mT)
        if index == spec.gapped:
            rows, columns = module.weight.shape
            module.weight = nn.Parameter(module.weight.new_empty(rows, columns + 1)[:, :columns].detach())
        if spec.tied and index == spec.tied[1]:
            module.weight = layers[spec.tied[0]].weight
        layers.append(module)
    return layers


def _module(layer: Layer, inputs: int) -> Any:
    name, arguments, options = construction(layer, inputs)
    return attrgetter(name)(modules)(*arguments, **options)


@torch.no_grad()
def fill(model: torch.nn.Module, weights: Tensors, buffers: Tensors) -> None:
    """Copy weights and buffers, by name, into a model."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def call(scenario: Scenario, model: Any, x: torch.Tensor) -> torch.Tensor:
    """Call a model, wrapped or not, with the arguments that the scenario asks for."""
    spec = scenario.model
    output: torch.Tensor
    if spec.nested:
        output = model({"batch": (x, GAIN)})["output"]
    elif spec.named:
        output = model(Given(x, GAIN)).output
    elif spec.positional:
        output = model(x, GAIN)
    else:
        gain = {"gain": None if spec.gain_none else GAIN} if spec.keyword else {}
        returned = model(features=x, **gain) if spec.by_name else model(x, **gain)
        output = returned if spec.output == "tensor" else returned.output
    return output


def loss_on(scenario: Scenario, model: Any, batch: Batch) -> torch.Tensor:
    """Return the loss of a model, wrapped or not, on a batch: an average over its samples."""
    x, y = batch
    if not scenario.penalised:
        return loss_of(call(scenario, model, x), y, scenario.loss_scale)
    x = x.clone().requires_grad_()
    output = call(scenario, model, x)
    return loss_of(output, y, scenario.loss_scale) + _penalty(output, x)


def _penalty(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the outputs' gradient with respect to the inputs, with its graph.

    As in the gradient penalty of Gulrajani et al., "Improved Training of Wasserstein GANs", 2017.
    """
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True, allow_unused=True)
    if slope is None:
        raise RuntimeError(
            "the outputs have no gradient with respect to the inputs, which the loss needs here: pass the arguments of "
            "the wrapper's forward to the model, not a copy that is detached"
        )
    return slope.square().mean()


def loss_of(output: torch.Tensor, target: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return the mean squared error times `scale`, in the wider dtype, but in float32 for float16 as in autocast."""
    wider = torch.promote_types(output.dtype, target.dtype)
    dtype = torch.float32 if wider == torch.float16 else wider
    # Both get one dtype: torch 2.11 has no backward for two.
    return nn.functional.mse_loss(output.to(dtype), target.to(dtype)) * scale
