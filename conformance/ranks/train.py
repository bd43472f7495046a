"""Trains a whole scenario with the submission's code, and records what the checks need."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from conformance.protocol.messages import ClosureCall, Happening, Observation
from conformance.ranks.boundary import offers, stage
from conformance.ranks.comm_threads import Alongside
from conformance.ranks.context import Context
from conformance.ranks.environment import noting_moved_generators
from conformance.ranks.loading import function
from conformance.ranks.optimizer_memory import state_bytes
from conformance.ranks.parameters import (
    Named,
    addresses,
    hooked_before_stored,
    hooks_on,
    parameters_by_name,
    plain,
    take_hooks_off,
)
from conformance.ranks.process_memory import process_state_bytes
from conformance.ranks.tracing import alive, leading_nowhere, noting, spoiling
from conformance.ranks.wrapping import SavedWeights, SecondOptimizer, Twin, bare_model, convert, make_model, wrap
from conformance.workload.models import Listener, call, loss_on
from conformance.workload.numbers import Tensors
from conformance.workload.schedule import OPTIMIZERS, Schedule


def train(context: Context) -> Observation:
    """Train as the scenario says; return what was seen."""
    return _Run(context).observe()


@dataclass
class _Run:
    """One scenario on one rank, from building the model to the last step."""

    context: Context
    named: Named = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    happened: list[Happening] = field(default_factory=list)
    closure_call: ClosureCall | None = None
    twin: Twin | None = None
    second: SecondOptimizer | None = None
    in_training: bool = True
    wrong_modes: list[str] = field(default_factory=list)
    forwards: int = 0
    moved_generators: list[str] = field(default_factory=list)
    in_backward: Callable[[], AbstractContextManager[None]] = nullcontext

    def observe(self) -> Observation:
        self._build()
        try:
            return self._train()
        finally:  # a parameter with a hook that refers to it, and what else the hook refers to, are never collected
            twins = [p for beside in (self.twin, self.second) if beside for p in beside.named.values()]
            take_hooks_off([*self.model.parameters(), *self.named.values(), *twins])

    def _train(self) -> Observation:
        before = addresses(self.named)
        seen = Observation(self.tensors, extra_parameters=self.extra, early_gradients=self.early)
        for step in range(self.context.scenario.steps):
            with stage("a change of the optimizer between steps", step):
                self.plan.before_step(step)
            self.happened = []
            seen.losses.append(self._step(step))
            seen.happenings.append(self.happened)
            seen.closures.extend([self.closure_call] if self.closure_call else [])
            with stage("a look at the parameters", step):
                seen.hooks.append(hooks_on(self.named.values()))
                self._keep(f"parameter/{step}", self.named)
                seen.moved.extend(name for name, now in addresses(self.named).items() if now != before[name])
            if self.context.scenario.counted:
                seen.alive.append(alive() - len(self.tensors))
        return replace(
            seen,
            spoiled=self._spoiled() if self.context.scenario.spoiled else [],
            **self._optimizer_at_end() if self.context.task.contract.optimizer else {},
            offers_no_sync=offers(self.wrapped, "no_sync"),
            offers_module=self.offers_module,
            offers_state_dict=self.saved.offered,
            wrong_modes=self.wrong_modes,
            tensor_hooks=hooked_before_stored(self.named),
            forwards=self.forwards,
            altered=self.plan.altered,
            generators=self.moved_generators,
            lost=self.plan.lost,
        )

    def _spoiled(self) -> list[str]:
        """Return the names of parameters with a gradient that is NaN, if collectives of its backward pass give NaN."""
        scenario = self.context.scenario
        self.happened, self.in_backward = [], spoiling
        with stage("on_train_batch_start"):
            self._call_hook("batch_start")
        self._clear(scenario.steps)
        with noting(self.happened, scenario):
            self._pass(scenario.steps - 1, [scenario.micro(scenario.steps - 1)[-1]], is_last=True)
        return [name for name, p in self.named.items() if p.grad is not None and not plain(p.grad).isfinite().all()]

    def _optimizer_at_end(self) -> dict[str, Any]:
        """Return the facts about an optimizer after the last step."""
        with stage("a look at the optimizer's state"):
            held = state_bytes(self.plan.optimizer)
        with stage("a look at `param_groups`"):
            groups = self.plan.optimizer.param_groups if offers(self.plan.optimizer, "param_groups") else ()
            listed = {id(p) for group in groups for p in group["params"]}
        had = {name for name, p in self.named.items() if p.grad is not None}
        self._clear(self.context.scenario.steps)
        return {
            "state_bytes": held,
            "process_bytes": self._process_bytes(),
            "unlisted": [name for name, p in self.named.items() if id(p) not in listed],
            "uncleared": [name for name, p in self.named.items() if p.grad is not None and bool(p.grad.any())],
            "dropped": [name for name, p in self.named.items() if p.grad is None and name in had],
        }

    def _process_bytes(self) -> int | None:
        """Return what this process needs for the state of another optimizer, if the scenario asks for it."""
        spec = self.context.scenario.optimizer
        if not self.context.scenario.weighed:
            return None
        with stage("the first step of another optimizer"):
            return process_state_bytes(self._make_optimizer, self.named.values(), OPTIMIZERS[spec.kind], spec.options)

    def _build(self) -> None:
        scenario = self.context.scenario
        self.model = make_model(self.context)
        self.wrapped: Any = self.model
        before = dict(self.model.named_parameters())
        if self.context.task.contract.wrapper:
            with noting_moved_generators(self.moved_generators):
                self.wrapped = wrap(self.context, self.model)
            convert(self.context, self.wrapped, self.model)
            self.twin = Twin(self.context) if scenario.twins else None
        with stage("a look at the parameters of the wrapped model"):
            self.named, self.extra = parameters_by_name(self.wrapped, tuple(scenario.model.shapes), before)
            self._keep("wrapped", self.named)
            self.early = [name for name, p in self.named.items() if p.grad is not None]
            self.bare = bare = bare_model(self.wrapped, self.model)
        bare.register_forward_pre_hook(leading_nowhere(self._note_forward))
        bare.listener = self._layer_noter()  # after wrapping: a wrapper may copy the model by pickling
        with stage("a look at the buffers of the wrapped model"):
            self._keep("buffer", dict(bare.named_buffers()))
        self.saved = SavedWeights(self.context, self.wrapped)
        with stage("construction of the optimizer"):
            self.plan = Schedule(scenario, self.named, self._make_optimizer, self.saved.load)
        if scenario.twins and self.context.task.contract.kind == "optimizer":
            self.second = SecondOptimizer(
                self.context, self.named, function(self.context.adapters, self.context.task.contract.get)
            )
        if scenario.in_evaluation:
            with stage("`eval()`"):
                self._switch(training=False)

    def _layer_noter(self) -> Listener:
        """Return a function that records the layers which backward reaches; copies of the model can share it."""

        def note(layer: int) -> None:
            if layer == 0 and self.context.scenario.gated:
                Alongside(self.happened).let_launch()
            self.happened.append(Happening("reached", layer=layer))

        return leading_nowhere(note)

    def _note_forward(self, model: torch.nn.Module, _: object) -> None:
        self.forwards += 1
        if model.training is not self.in_training:
            self.wrong_modes.append("training" if model.training else "evaluation")

    def _make_optimizer(self, params: Any, optimizer_cls: Any, **options: Any) -> Any:
        contract = self.context.task.contract
        if contract.optimizer is None:
            return optimizer_cls(params, **options)
        if contract.wrapper is None:
            take_hooks_off(self.named.values())  # those of an earlier optimizer; a new process has none
        return function(self.context.adapters, contract.optimizer)(params, optimizer_cls, **options)

    def _step(self, step: int) -> float:
        self.bare.step = step
        if self.context.scenario.evaluates:
            self._evaluate(step)
        if step == self.context.scenario.aborts:
            self._abort(step)
        started: list[Happening] = []
        with stage("on_train_batch_start", step), noting(started, self.context.scenario):
            self._call_hook("batch_start")
        if not (self.context.scenario.clears_late or self.context.scenario.closure):
            self._clear(step)
        if self.context.scenario.closure:
            self.closure_call = self._step_with_closure(step)
            loss = self.closure_call.loss
        else:
            loss = self._backward(step)
            with stage("gradient clipping", step):
                self.plan.clip()
            if self.second:
                self.second.step(self.named, step)
                self._keep(f"twin/{step}", self.second.named)
            stepped: list[Happening] = []
            with stage("the optimizer's step", step), noting(stepped, self.context.scenario):
                self.plan.step(step)
            self.happened += stepped
        self.happened[:0] = started
        with stage("the scheduler's step", step):
            self.plan.after_step()
        return loss

    def _clear(self, step: int) -> None:
        with stage("zero_grad", step):
            cleared = self.plan.optimizer if self.context.scenario.cleared_by == "optimizer" else self.model
            cleared.zero_grad(set_to_none=self.context.scenario.set_to_none)

    def _evaluate(self, step: int) -> None:
        with stage("forward in evaluation mode", step), torch.no_grad():
            self._switch(training=False)
            x, _ = self.context.inputs.batches[self.context.scenario.micro(step)[0]]
            if isinstance(output := call(self.context.scenario, self.wrapped, x), torch.Tensor):
                self._keep(f"evaluation/{step}", {"output": output})
            self._switch(training=True)

    def _switch(self, *, training: bool) -> None:
        switched = self.wrapped if offers(self.wrapped, "eval") else self.bare
        switched.train() if training else switched.eval()
        self.in_training = training

    def _abort(self, step: int) -> None:
        """Run a backward pass of another batch that raises at the first layer; clear the gradients that it computed."""

        def refuse(layer: int) -> None:
            if layer == 0:
                raise _AbortedError

        with stage("a backward pass that raises", step):
            listening, self.bare.listener = self.bare.listener, refuse
            with suppress(_AbortedError), self.wrapped.no_sync() if self._is_lazy else nullcontext():
                other = self.context.inputs.batches[-1 if step == 0 else 0]
                torch.autograd.backward(loss_on(self.context.scenario, self.called, other))
            self.bare.listener = listening
        self._clear(step)

    @property
    def called(self) -> Any:
        """What forward is called on: the wrapped model, or the one inside."""
        inside = self.context.scenario.unwrapped and self.offers_module
        return self.wrapped.module if inside else self.wrapped

    @property
    def offers_module(self) -> bool:
        """Whether the wrapped model has a `module`, which is not the wrapped model itself."""
        return offers(self.wrapped, "module") and self.wrapped.module is not self.wrapped

    @property
    def _is_lazy(self) -> bool:
        """Whether to use the wrapper's `no_sync`."""
        return self.context.scenario.no_sync and offers(self.wrapped, "no_sync")

    @contextmanager
    def _lazily(self) -> Iterator[None]:
        """Enter the wrapper's `no_sync`; if the scenario nests it, enter and leave another one inside."""
        with self.wrapped.no_sync():
            with self.wrapped.no_sync() if self.context.scenario.nests else nullcontext():
                pass
            yield

    def _backward(self, step: int) -> float:
        """Compute the gradients of a step; return the sum of its micro-batches' losses."""
        micro = self.context.scenario.micro(step)
        *first, last = [tuple(micro)] if self.context.scenario.joined else [(one,) for one in micro]
        before = {name: plain(parameter) for name, parameter in self.named.items()}
        with noting(self.happened, self.context.scenario):
            losses = [self._pass(step, some, is_last=False) for some in first]
            losses.append(self._pass(step, last, is_last=True))
        if self.context.scenario.averaged:
            self._average()
        with stage("a look at the gradients", step):
            self._keep(f"gradient/{step}", {name: p.grad for name, p in self.named.items() if p.grad is not None})
            written = {name: p for name, p in self.named.items() if not torch.equal(plain(p), before[name])}
            self._keep(f"written/{step}", written)
        return sum(losses)

    def _pass(self, step: int, micro: Sequence[int], *, is_last: bool) -> float:
        """Run forward on these micro-batches and one backward; return the loss."""
        scenario, synchronise = self.context.scenario, is_last or not self._is_lazy
        with stage("no_sync", step), nullcontext() if synchronise else self._lazily():
            with stage("forward", step):
                loss = torch.stack([self._loss(number) for number in micro]).sum()
            if scenario.clears_late and scenario.is_first(micro[0]):
                self._clear(step)
            if scenario.peeks:
                with stage("a forward without gradients", step), torch.no_grad():
                    call(scenario, self.wrapped, self.context.inputs.batches[micro[0]][0])
            other = self.twin.forward(step) if self.twin else None
            self.happened.append(Happening("began"))
            with stage("backward", step), self.in_backward():
                if scenario.trains(step):
                    torch.autograd.backward(loss)
        self.happened.append(Happening("returned"))
        if synchronise and (is_last or not scenario.finishes_once):
            with stage("on_after_backward", step):
                self._call_hook("after_backward")
            self.happened.append(Happening("finished"))
        if self.twin and other is not None:
            self.twin.backward(other, step)
            self._keep(f"twin/{step}", {name: p.grad for name, p in self.twin.named.items() if p.grad is not None})
        return float(loss.detach())

    def _call_hook(self, name: Literal["batch_start", "after_backward"]) -> None:
        """Call an adapter function of the wrapper, if there is one."""
        wrapper = self.context.task.contract.wrapper
        hook = getattr(wrapper, name) if wrapper else None
        function(self.context.adapters, hook)(self.wrapped, self.plan.optimizer)

    def _loss(self, micro: int) -> torch.Tensor:
        self.bare.first = self.context.scenario.is_first(micro)
        loss = loss_on(self.context.scenario, self.called, self.context.inputs.batches[micro])
        return loss * self.context.scenario.weight(dist.get_rank())

    def _step_with_closure(self, step: int) -> ClosureCall:
        losses: list[float] = []
        enabled: list[bool] = []

        def closure() -> torch.Tensor:
            enabled.append(torch.is_grad_enabled())
            with torch.enable_grad():
                self._clear(step)
                losses.append(self._backward(step))
            return torch.tensor(losses[-1], dtype=torch.float64)

        with stage("step(closure)", step):
            returned: Any = self.plan.optimizer.step(closure)  # type: ignore[arg-type]  # torch says float, and means tensors too
        is_number = isinstance(returned, float | int) or (isinstance(returned, torch.Tensor) and returned.numel() == 1)
        value = float(returned) if is_number else None
        return ClosureCall(len(losses), all(enabled), value, losses[0] if losses else float("nan"))

    def _average(self) -> None:
        """Average gradients as the simplest wrapper does, for scenarios that train an optimizer beside one."""
        for parameter in self.named.values():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def _keep(self, prefix: str, tensors: Any) -> None:
        self.tensors |= {f"{prefix}/{name}": plain(tensor) for name, tensor in tensors.items()}


class _AbortedError(Exception):
    """Raised by the backward pass of a scenario that aborts one."""
