"""Makes the optimizer of a scenario, and applies the scenario's schedule to the optimizer and the model.

Ranks use it with the submission's optimizer, the oracle with torch's own: both get the same calls in the same order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from io import BytesIO
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR

from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Freeze,
    Group,
    LoadWeights,
    OneCycle,
    OptimizerKind,
    Rebuild,
    Save,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    kind: getattr(torch.optim, kind) for kind in get_args(OptimizerKind)
}
Parameters = Mapping[str, torch.nn.Parameter]
MakeOptimizer = Callable[..., torch.optim.Optimizer]
_ABSENT = object()
_SCALE = 256.0


class Schedule:
    """An optimizer, its scheduler if any, and the events that change the optimizer or the parameters.

    Attributes:
        optimizer: the current optimizer; some events replace it.
        altered: places in a saved state that `load_state_dict` has changed.
        lost: keys of parameter groups that are missing or have another value after loading.
    """

    def __init__(
        self, scenario: Scenario, parameters: Parameters, make: MakeOptimizer, load_weights: Callable[[], None]
    ) -> None:
        """Make the optimizer by `make(params, optimizer_cls, **options)`; `load_weights` restores initial weights."""
        self._scenario, self._parameters, self._make = scenario, parameters, make
        self._load_weights = load_weights
        self.optimizer = self._new()
        self.altered: list[str] = []
        self.lost: list[str] = []
        self._scheduler: LRScheduler | None = None
        self._scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE) if scenario.scaler else None

    def before_step(self, step: int) -> None:
        """Apply the events of `step`, before it."""
        for event in self._scenario.events(step):
            match event:
                case SetOption():
                    self._set(event)
                case Decay() | OneCycle():
                    self._scheduler = self._scheduled(event)
                case AddGroup():
                    self.optimizer.add_param_group(self._group(event.group))
                case Unfreeze() | Freeze():
                    self._let_train(event)
                case SaveAndLoad():
                    self._save_and_load()
                case Save():
                    self._saved()
                case Rebuild():
                    options = [dict(group) for group in self.optimizer.param_groups]
                    self.optimizer = self._make(options, OPTIMIZERS[self._scenario.optimizer.kind])
                case LoadWeights():
                    self._load_weights()

    def _scheduled(self, event: Decay | OneCycle) -> LRScheduler:
        if isinstance(event, Decay):
            return ExponentialLR(self.optimizer, event.gamma)
        steps = self._scenario.steps + 1
        return OneCycleLR(self.optimizer, event.max_lr, steps, cycle_momentum=event.momentum)

    def clip(self) -> None:
        """Clip the gradients before an optimizer step, if the scenario asks for it."""
        if self._scenario.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._scenario.clip)

    def step(self, step: int) -> None:
        """Step the optimizer, through the gradient scaler if there is one."""
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scale_gradients(float(self._scaler.scale(torch.ones(()))), overflows=step == 0)
            self._scaler.step(self.optimizer)
            self._scaler.update()

    def after_step(self) -> None:
        """Step the scheduler, if there is one."""
        if self._scheduler is not None:
            self._scheduler.step()

    def _scale_gradients(self, scale: float, *, overflows: bool) -> None:
        """Scale gradients as those of a scaled loss are; let one element of the first one overflow, if so asked."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(scale)
        if overflows:
            gradients[0][(0,) * gradients[0].dim()] = torch.inf

    def _let_train(self, event: Unfreeze | Freeze) -> None:
        for parameter in map(self._parameters.__getitem__, event.parameters):
            parameter.requires_grad_(isinstance(event, Unfreeze))
            if isinstance(event, Freeze) and event.drops:
                parameter.grad = None

    def _new(self) -> torch.optim.Optimizer:
        spec, schedule = self._scenario.optimizer, self._scenario.schedule
        later = {name for event in schedule if isinstance(event, AddGroup) for name in event.group.parameters}
        params: Iterable[Any] = (value for name, value in self._parameters.items() if name not in later)
        if spec.groups:
            params = [self._group(group) for group in spec.groups]
        return self._make(params, OPTIMIZERS[spec.kind], **spec.options)

    def _group(self, group: Group) -> dict[str, Any]:
        params = (self._parameters[name] for name in group.parameters)
        return {"params": params if self._scenario.optimizer.generators else list(params), **group.options}

    def _set(self, event: SetOption) -> None:
        groups = self.optimizer.param_groups
        for group in groups if event.group < 0 else [groups[event.group]]:
            group[event.option] = event.value

    def _save_and_load(self) -> None:
        saved = _through_a_file(self._saved())
        before, groups = deepcopy(saved), _without_parameters(self.optimizer)
        self.optimizer = self._new()
        self.optimizer.load_state_dict(saved)
        self.altered += _differing(before, saved)
        self.lost += _differing(groups, _without_parameters(self.optimizer))

    def _saved(self) -> Any:
        """Return the optimizer's state; if it must be consolidated first, as in torch's ZeRO, rank 0's state."""
        if not hasattr(self.optimizer, "consolidate_state_dict"):
            return self.optimizer.state_dict()
        self.optimizer.consolidate_state_dict()
        saved = [self.optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(saved)
        return saved[0]


def _without_parameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return each parameter group without its parameters; [] for an optimizer without groups."""
    groups = getattr(optimizer, "param_groups", [])
    return [{key: deepcopy(value) for key, value in group.items() if key != "params"} for group in groups]


def _through_a_file(saved: Any) -> Any:
    """Return an equal copy of a state that shares no objects with the optimizer, as another process would load it."""
    file = BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _differing(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield the places where two nested structures of dicts, lists and tensors differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differing(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{place}[{key!r}]")
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        yield from _differing(dict(enumerate(before)), dict(enumerate(after)), place)
    elif isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        alike = (before.shape, before.dtype) == (after.shape, after.dtype)
        if not alike or not torch.allclose(before, after, rtol=0, atol=0, equal_nan=True):
            yield place
    elif type(before) is not type(after) or not _can_be_equal(before, after):
        yield place


def _can_be_equal(before: Any, after: Any) -> bool:
    """Return whether two values of one type may be equal; True if they cannot be compared."""
    kind: Any = type(before)
    if before is after or kind.__eq__ is object.__eq__:  # NaN is not equal to itself
        return True
    try:
        same = before == after
        return bool(same.all()) if hasattr(same, "all") else bool(same)  # arrays compare element by element
    except (RuntimeError, ValueError):
        return True
