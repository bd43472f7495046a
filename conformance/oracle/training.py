"""What training must give: one process, plain torch, the batches of all ranks concatenated.

In dtypes narrower than float64, one process that averages the gradients of the ranks' batches, and whose rounding goes
the way it went on a rank: `tolerance` says why.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
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
    """A training run: what each step began with, its gradients, the parameters after it, and its loss.

    Attributes:
        starts: per step, parameters right before it.
        gradients: per step, those of the parameters that have one.
        parameters: per step, after it.
        losses: per step, before it.
        state_bytes: bytes of optimizer state at the end, by parameter; counters of steps are left out.
        gradient_limits, parameter_limits: per step, how far rounding may take each of them, in absolute terms.
    """

    starts: list[Tensors] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: list[Tensors] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    state_bytes: dict[str, int] = field(default_factory=dict)
    gradient_limits: list[Limits] = field(default_factory=list)
    parameter_limits: list[Limits] = field(default_factory=list)


@contextmanager
def _like_a_rank() -> Iterator[None]:
    """Compute on one thread, as ranks do: another number of threads is another order of summation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_like_a_rank()
def train(scenario: Scenario, inputs: list[RankInputs], follow: Trajectory | None = None) -> Trajectory:
    """Train from rank 0's weights.

    Args:
        scenario: what to train, and how.
        inputs: every rank's numbers.
        follow: what was seen on a rank. In dtypes narrower than float64, training goes on from these gradients and
            parameters, one by one, as far as they differ from the right ones by rounding alone; float64 needs none.
    """
    run = _Run(scenario, inputs, follow if scenario.model.narrow else None)
    for step in range(scenario.steps):
        run.step(step)
    return run.end()


def parameters_after_steps(scenario: Scenario, inputs: list[RankInputs]) -> Iterator[Tensors]:
    """Yield the parameters after each step of such a training, which goes on only as long as it is asked to."""
    with _like_a_rank():
        run = _Run(scenario, inputs, None)
    for step in range(scenario.steps):
        with _like_a_rank():
            run.step(step)
        yield run.seen.parameters[step]


class _Run:
    """A training run in progress."""

    def __init__(self, scenario: Scenario, inputs: list[RankInputs], follow: Trajectory | None) -> None:
        self.scenario, self.inputs, self.follow = scenario, inputs, follow
        self.model = Perceptron(scenario.model)
        self._fill()
        self.named = dict(self.model.named_parameters())
        self.plan = Schedule(
            scenario, self.named, lambda params, optimizer_cls, **options: optimizer_cls(params, **options), self._fill
        )
        self.seen = Trajectory()
        self.pace: dict[str, float] = {}

    def _fill(self) -> None:
        fill(self.model, self.inputs[0].weights, self.inputs[0].buffers)

    @cached_property
    def twin(self) -> Perceptron:
        """The same model in float64."""
        return Perceptron(self.scenario.model.in_float64)

    def step(self, step: int) -> None:
        self.model.step = step
        self.plan.before_step(step)
        self.seen.starts.append(_values(self.named))
        self.model.zero_grad()
        (self._average if self.scenario.model.narrow else self._whole)(step)
        self.plan.clip()
        self.plan.optimizer.step()
        after = _values(self.named)
        self.seen.parameters.append(after)
        if self.scenario.model.narrow:
            self._settle(step, after)
        else:
            self.seen.parameter_limits.append(float64_limits(after))
        self.plan.after_step()

    def end(self) -> Trajectory:
        state = self.plan.optimizer.state
        self.seen.state_bytes = {name: _state_bytes(state.get(p, {})) for name, p in self.named.items()}
        return self.seen

    def _whole(self, step: int) -> None:
        """Compute gradients on the batches of all ranks at once."""
        losses = []
        for micro in self.scenario.micro(step):
            loss = self._loss(micro)
            if self.scenario.trains(step):
                torch.autograd.backward(loss)
            losses.append(float(loss.detach()))
        gradients = _gradients(self.named)
        self.seen.losses.append(sum(losses))
        self.seen.gradients.append(gradients)
        self.seen.gradient_limits.append(float64_limits(gradients))

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

    def _average(self, step: int) -> None:
        """Compute each rank's gradients, and take their average in float64; let the model have it rounded.

        In narrow dtypes a step has one micro-batch, and every rank as many samples.
        """
        shards, exact, losses = [], [], []
        for rank, batch in self._shards(step):
            self.model.rank = rank
            self.model.zero_grad()
            losses.append(_backward(self.scenario, self.model, batch))
            shards.append(_gradients(self.named))
            exact.append(self._in_float64(rank, batch))
        stacked, errors = _by_name(shards), _apart(shards, exact)
        gradients = {name: parts.mean(0) for name, parts in stacked.items()}
        magnitudes = {name: scale_of([parts.abs().mean(0)]) for name, parts in stacked.items()}
        limits = gradient_limits(self.scenario, magnitudes, errors)
        for name, parameter in self.named.items():
            right = gradients.get(name)
            parameter.grad = None if right is None else self._taken("gradients", step, name, right, limits[name])
        self.seen.losses.append(sum(losses) / len(losses))
        self.seen.gradients.append(gradients)
        self.seen.gradient_limits.append(limits)

    def _in_float64(self, rank: int, batch: Batch) -> Tensors:
        """Return the gradients of one rank's batch as they would be without rounding."""
        twin = self.twin
        twin.rank, twin.step = rank, self.model.step
        twin.zero_grad()
        fill(twin, _values(self.named), dict(self.model.named_buffers()))
        named = dict(twin.named_parameters())
        for name, parameter in named.items():
            parameter.requires_grad_(self.named[name].requires_grad)
        _backward(self.scenario, twin, (batch[0].double(), batch[1].double()))
        return _gradients(named)

    def _shards(self, step: int) -> Iterator[tuple[int, Batch]]:
        inputs = self.inputs[:1] if self.scenario.replicated else self.inputs
        return ((rank, own.batches[step]) for rank, own in enumerate(inputs))

    def _settle(self, step: int, after: Tensors) -> None:
        """Say how far rounding may take parameters in this step, and go on from where it took them."""
        limits = {}
        for name, (lr, decay) in self._rates().items():
            before, parameter = self.seen.starts[step][name], self.named[name]
            if lr:
                moved = scale_of([after[name].double() - before.double()])
                self.pace[name] = max(self.pace.get(name, 0.0), moved / lr)
            size = scale_of([before, after[name]])
            update = lr * (self.pace.get(name, 0.0) + decay * size)
            limits[name] = parameter_limit(self.scenario.model.dtypes[name], size, update, step + 1)
            with torch.no_grad():
                parameter.copy_(self._taken("parameters", step, name, after[name], limits[name]))
        self.seen.parameter_limits.append({name: limits.get(name, 0.0) for name in after})

    def _rates(self) -> dict[str, tuple[float, float]]:
        """Return learning rate and weight decay of each parameter that the optimizer has."""
        names = {parameter: name for name, parameter in self.named.items()}
        return {
            names[parameter]: (group["lr"], group.get("weight_decay", 0.0))
            for group in self.plan.optimizer.param_groups
            for parameter in group["params"]
        }

    def _taken(self, kind: str, step: int, name: str, right: torch.Tensor, limit: float) -> torch.Tensor:
        """Return what was seen if it is right but for rounding, else the right value."""
        seen = getattr(self.follow, kind)[step].get(name) if self.follow is not None else None
        taken = seen if seen is not None and equal(seen, right, limit=limit) else right
        return taken.to(self.named[name].dtype)


@_like_a_rank()
def shard_gradients(
    scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, step: int, *, last: bool = False
) -> list[Tensors]:
    """Return the gradients that each rank's own batch gives at a step, with the oracle's parameters before it.

    With `last`, those of the step's last backward pass alone.
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


@_like_a_rank()
@torch.no_grad()
def outputs_before(scenario: Scenario, inputs: list[RankInputs], expected: Trajectory, step: int) -> list[torch.Tensor]:
    """Return the model's output on each rank's batch, with the oracle's parameters before a step."""
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


def _backward(scenario: Scenario, model: Perceptron, batch: Batch) -> float:
    """Compute gradients on a batch, and return the loss."""
    loss = loss_on(scenario, model, batch)
    torch.autograd.backward(loss)
    return float(loss.detach())


def _apart(narrow: Sequence[Tensors], exact: Sequence[Tensors]) -> dict[str, float]:
    """Return, by parameter, the largest error that rounding made of its gradient on any rank."""
    pairs = [(name, g - right[name]) for own, right in zip(narrow, exact, strict=True) for name, g in own.items()]
    return {name: max(scale_of([apart]) for other, apart in pairs if other == name) for name, _ in pairs}


def _by_name(shards: Sequence[Tensors]) -> Tensors:
    """Return each parameter's gradients on all ranks, stacked; zeros where a rank has none."""
    some = {name: gradient for shard in shards for name, gradient in shard.items()}
    return {
        name: torch.stack([shard.get(name, torch.zeros_like(one)) for shard in shards]) for name, one in some.items()
    }


def _values(named: dict[str, torch.nn.Parameter]) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def _state_bytes(state: dict[str, Any]) -> int:
    tensors = [value for key, value in state.items() if key != "step" and isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
