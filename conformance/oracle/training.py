"""The right training: one process, plain torch, the batches of all ranks concatenated.

In dtypes narrower than float64, one process averages the gradients of the ranks' batches, and follows the rounding of a
rank: `tolerance` says why.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from conformance.oracle.tolerance import Limits, equal, float64_limits, gradient_limits, parameter_limit, scale_of
from conformance.scenarios.scenario import Scenario
from conformance.workload.models import Perceptron, call, fill, loss_on
from conformance.workload.numbers import Batch, RankInputs, Tensors, global_batch, wide
from conformance.workload.schedule import Schedule

PER_RANK = {"used_on_rank_0", "used_on_rank_1", "order_by_rank", "used_in_turn", "one_each"}


@dataclass
class Trajectory:
    """What happened in a training run; tensors are by parameter name.

    Attributes:
        starts: for each step, the parameters before it.
        gradients: for each step, the gradients in double precision; parameters without a gradient are missing.
        parameters: for each step, the parameters after it.
        state_bytes: by parameter, the bytes of optimizer state at the end, without step counters.
        gradient_limits, parameter_limits: for each step, the largest absolute differences that rounding explains.
    """

    starts: list[Tensors] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: list[Tensors] = field(default_factory=list)
    state_bytes: dict[str, int] = field(default_factory=dict)
    gradient_limits: list[Limits] = field(default_factory=list)
    parameter_limits: list[Limits] = field(default_factory=list)


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Compute on one thread, as ranks do: another number of threads changes the order of summation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_on_one_thread()
def train(scenario: Scenario, inputs: list[RankInputs], follow: Trajectory | None = None) -> Trajectory:
    """Train from rank 0's weights.

    Args:
        scenario: what to train, and how.
        inputs: every rank's numbers.
        follow: the training on a rank. In dtypes narrower than float64, and where communication is lossy, training
            continues with each gradient and parameter of the rank that is within the limits. Else it is not used.
    """
    run = _Run(scenario, inputs, follow if scenario.followed else None)
    for step in range(scenario.steps):
        run.step(step)
    return run.end()


def parameters_after_steps(scenario: Scenario, inputs: list[RankInputs]) -> Iterator[Tensors]:
    """Yield the parameters after each step of the right training; a step runs when its parameters are asked for."""
    with _on_one_thread():
        run = _Run(scenario, inputs, None)
    for step in range(scenario.steps):
        with _on_one_thread():
            run.step(step)
        yield run.trajectory.parameters[step]


class _Run:
    """A training run in progress."""

    def __init__(self, scenario: Scenario, inputs: list[RankInputs], follow: Trajectory | None) -> None:
        self.scenario, self.inputs, self.follow = scenario, inputs, follow
        self.model = Perceptron(scenario.model)
        refill = partial(fill, self.model, inputs[0].weights, inputs[0].buffers)  # a method would keep this alive
        refill()
        self.named = dict(self.model.named_parameters())
        self.schedule = Schedule(
            scenario, self.named, lambda params, optimizer_cls, **options: optimizer_cls(params, **options), refill
        )
        self.trajectory = Trajectory()
        self.largest_move: dict[str, float] = {}

    @cached_property
    def twin(self) -> Perceptron:
        """The same model in float64."""
        return Perceptron(self.scenario.model.in_float64)

    def step(self, step: int) -> None:
        self.model.step = step
        self.schedule.before_step(step)
        self.trajectory.starts.append(_values(self.named))
        self.model.zero_grad()
        (self._train_on_shards if self.scenario.followed else self._train_on_whole_batch)(step)
        self.schedule.clip()
        self.schedule.step(step)
        after = _values(self.named)
        self.trajectory.parameters.append(after)
        if self.scenario.followed:
            self._follow_parameters(step, after)
        else:
            self.trajectory.parameter_limits.append(float64_limits(after))
        self.schedule.after_step()

    def end(self) -> Trajectory:
        state = self.schedule.optimizer.state
        self.trajectory.state_bytes = {name: _state_bytes(state.get(p, {})) for name, p in self.named.items()}
        return self.trajectory

    def _train_on_whole_batch(self, step: int) -> None:
        """Compute gradients on the concatenated batches of all ranks."""
        for micro in self.scenario.micro(step) if self.scenario.trains(step) else ():
            torch.autograd.backward(self._loss(micro))
        gradients = _gradients(self.named)
        self.trajectory.gradients.append(gradients)
        self.trajectory.gradient_limits.append(float64_limits(gradients))

    def _loss(self, micro: int) -> torch.Tensor:
        self.model.first = self.scenario.is_first(micro)
        if self.scenario.replicated or self.scenario.model.branch not in PER_RANK:
            whole = self.inputs[0].batches[micro] if self.scenario.replicated else global_batch(self.inputs, micro)
            return loss_on(self.scenario, self.model, whole)
        losses = []
        for rank, own in enumerate(self.inputs):
            self.model.rank = rank
            losses.append(loss_on(self.scenario, self.model, own.batches[micro]) * self.scenario.weight(rank))
        return torch.stack(losses).mean()

    def _train_on_shards(self, step: int) -> None:
        """Compute each rank's gradients and their average in float64; store the average rounded in `.grad`."""
        shards, exact = [], []
        for rank, own in enumerate(self.inputs[:1] if self.scenario.replicated else self.inputs):
            self.model.rank = rank
            shards.append(self._on_shard(self.model, step, rank, own.batches))
            exact.append(self._in_float64(step, rank, own.batches))
        stacked, errors = _stacked(shards), _rounding_errors(shards, exact)
        gradients = {name: parts.mean(0) for name, parts in stacked.items()}
        magnitudes = {name: scale_of([parts.abs().mean(0)]) for name, parts in stacked.items()}
        limits = gradient_limits(self.scenario, magnitudes, errors)
        for name, parameter in self.named.items():
            right = gradients.get(name)
            parameter.grad = None if right is None else self._followed("gradients", step, name, right, limits[name])
        self.trajectory.gradients.append(gradients)
        self.trajectory.gradient_limits.append(limits)

    def _on_shard(self, model: Perceptron, step: int, rank: int, batches: Sequence[Batch]) -> Tensors:
        """Return the gradients of one rank's batches of a step."""
        model.zero_grad()
        for micro in self.scenario.micro(step) if self.scenario.trains(step) else ():
            model.first = self.scenario.is_first(micro)
            loss = loss_on(self.scenario, model, batches[micro])
            torch.autograd.backward(loss * self.scenario.weight(rank))
        return _gradients(dict(model.named_parameters()))

    def _in_float64(self, step: int, rank: int, batches: Sequence[Batch]) -> Tensors:
        """Return the gradients of one rank's batches, computed in float64."""
        twin = self.twin
        twin.rank, twin.step = rank, self.model.step
        fill(twin, _values(self.named), dict(self.model.named_buffers()))
        named = dict(twin.named_parameters())
        for name, parameter in named.items():
            parameter.requires_grad_(self.named[name].requires_grad)
        doubled = [(x.double() if x.is_floating_point() else x, y.double()) for x, y in batches]
        return self._on_shard(twin, step, rank, doubled)

    def _follow_parameters(self, step: int, after: Tensors) -> None:
        """Store how far rounding may take parameters in this step; continue with the followed rank's parameters."""
        limits = {}
        for name, (lr, decay) in self._rates().items():
            before, parameter = self.trajectory.starts[step][name], self.named[name]
            if lr:
                moved = scale_of([wide(after[name]) - wide(before)])
                self.largest_move[name] = max(self.largest_move.get(name, 0.0), moved / lr)
            size = scale_of([before, after[name]])
            update = lr * (self.largest_move.get(name, 0.0) + decay * size)
            lost = self.scenario.lossy * size if self.scenario.replicated else 0.0
            limits[name] = parameter_limit(self.scenario.model.dtypes[name], size, update, step + 1) + lost
            with torch.no_grad():
                parameter.copy_(self._followed("parameters", step, name, after[name], limits[name]))
        self.trajectory.parameter_limits.append({name: limits.get(name, 0.0) for name in after})

    def _rates(self) -> dict[str, tuple[float, float]]:
        """Return the learning rate and weight decay of each parameter in the optimizer."""
        names = {parameter: name for name, parameter in self.named.items()}
        return {
            names[parameter]: (group["lr"], group.get("weight_decay", 0.0))
            for group in self.schedule.optimizer.param_groups
            for parameter in group["params"]
        }

    def _followed(self, kind: str, step: int, name: str, right: torch.Tensor, limit: float) -> torch.Tensor:
        """Return the followed rank's value if only rounding separates it from the right value, else the right value."""
        seen = getattr(self.follow, kind)[step].get(name) if self.follow is not None else None
        value = seen if seen is not None and equal(seen, right, limit) else right
        return value.to(self.named[name].dtype, copy=True)  # it may be clipped in place


@_on_one_thread()
def shard_gradients(
    scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, step: int, *, last: bool = False
) -> list[Tensors]:
    """Return, by rank, the gradients of the rank's own batch at a step, with the oracle's parameters before the step.

    With `last`, only the gradients of the step's last backward pass.
    """
    model, found = Perceptron(scenario.model), []
    model.step = step
    for rank, own in enumerate(inputs):
        model.rank = rank
        model.zero_grad()
        fill(model, expected.starts[step], own.buffers)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in expected.gradients[step])
        for micro in scenario.micro(step)[-1 if last else 0 :]:
            model.first = scenario.is_first(micro)
            loss = loss_on(scenario, model, own.batches[micro]) * scenario.weight(rank)
            if scenario.trains(step):
                torch.autograd.backward(loss)
        found.append(_gradients(dict(model.named_parameters())))
    return found


@_on_one_thread()
@torch.no_grad()
def outputs_before(scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, step: int) -> list[torch.Tensor]:
    """Return, by rank, the model's output on the rank's batch, with the oracle's parameters before the step."""
    model = Perceptron(scenario.model)
    model.step = step
    fill(model, expected.starts[step], inputs[0].buffers)
    outputs = []
    for rank, own in enumerate(inputs):
        model.rank = rank
        outputs.append(call(scenario, model, own.batches[scenario.micro(step)[0]][0]))
    return outputs


def _gradients(named: dict[str, torch.nn.Parameter]) -> Tensors:
    """Return copies of the gradients, dense and in double precision."""
    return {name: wide(p.grad).clone() for name, p in named.items() if p.grad is not None}


def _rounding_errors(narrow: Sequence[Tensors], exact: Sequence[Tensors]) -> dict[str, float]:
    """Return, by parameter, the largest rounding error of its gradient on any rank."""
    pairs = [(name, g - right[name]) for own, right in zip(narrow, exact, strict=True) for name, g in own.items()]
    return {name: max(scale_of([apart]) for other, apart in pairs if other == name) for name, _ in pairs}


def _stacked(shards: Sequence[Tensors]) -> Tensors:
    """Return, by parameter, its gradients on all ranks, stacked; zeros for a rank that has none."""
    some = {name: gradient for shard in shards for name, gradient in shard.items()}
    return {
        name: torch.stack([shard.get(name, torch.zeros_like(one)) for shard in shards]) for name, one in some.items()
    }


def _values(named: dict[str, torch.nn.Parameter]) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def _state_bytes(state: dict[str, Any]) -> int:
    tensors = [value for key, value in state.items() if key != "step" and isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
