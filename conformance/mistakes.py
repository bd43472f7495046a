"""What known mistakes would have given on the same scenario.

Two kinds: what a rank's gradient would have been right after synchronisation, and another schedule that training would
have followed. The diagnosis matches an observation with them; a scenario on which a mistake that matters gives the same
numbers as correct code is not used.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from conformance.scenario import (
    AddGroup,
    Decay,
    Group,
    OptimizerSpec,
    Options,
    Rebuild,
    SaveAndLoad,
    Scenario,
    SetOption,
)


@dataclass(frozen=True)
class Shards:
    """One parameter at one step: each rank's own gradient, the rank that is asked about, and the step before."""

    own: tuple[torch.Tensor, ...]
    rank: int
    previous: torch.Tensor | None

    @property
    def mean(self) -> torch.Tensor:
        """The right answer."""
        return torch.stack(self.own).mean(0)


@dataclass(frozen=True)
class GradientMistake:
    """A way to get a gradient wrong: what would be seen, in words, what to look for, and the value (None: not apt)."""

    name: str
    seen: str
    advice: str
    value: Callable[[Shards], torch.Tensor | None]


def _half(shards: Shards) -> torch.Tensor | None:
    return None if len(shards.own) == 2 else torch.stack(shards.own).sum(0) / 2  # noqa: PLR2004  the literal of the bug


def _memory_order(shards: Shards) -> torch.Tensor | None:
    """The mean, its elements read in column order and written in row order."""
    mean = shards.mean
    return mean.t().contiguous().view(mean.shape) if mean.dim() == 2 else None  # noqa: PLR2004  a matrix


GRADIENT_MISTAKES = (
    GradientMistake(
        "never synchronised",
        "the rank's own gradient, as if nothing had been communicated",
        "Check that the collective is really launched (does its hook fire after the gradient is stored in `.grad`?), "
        "that it is waited for, and that its result is written back to `.grad`.",
        lambda s: s.own[s.rank],
    ),
    GradientMistake(
        "summed, not averaged",
        "the sum over the ranks, not the average",
        "`all_reduce` adds up: divide by `dist.get_world_size()` once.",
        lambda s: torch.stack(s.own).sum(0),
    ),
    GradientMistake(
        "divided twice",
        "the average divided by the number of ranks once more",
        "The division by the world size happens in two places (in the hook and after waiting?), or both on the way in "
        "and on the way out.",
        lambda s: s.mean / len(s.own),
    ),
    GradientMistake(
        "divided by a fixed 2",
        "the sum over the ranks divided by 2, whatever the number of ranks",
        "Divide by `dist.get_world_size()` in place of a literal.",
        _half,
    ),
    GradientMistake(
        "rank 0's gradient everywhere",
        "rank 0's own gradient",
        "A broadcast of gradients stands where an all-reduce is needed.",
        lambda s: s.own[0],
    ),
    GradientMistake(
        "zero",
        "zero",
        "The gradient was cleared, or its communication buffer was copied back before it held anything.",
        lambda s: torch.zeros_like(s.mean),
    ),
    GradientMistake(
        "added to the step before",
        "this step's average plus the gradient of the step before",
        "The gradient of the step before was not cleared, or a buffer was added to in place of overwritten. "
        "With `zero_grad(set_to_none=False)` a gradient that is a view must be zeroed too.",
        lambda s: None if s.previous is None else s.mean + s.previous,
    ),
    GradientMistake(
        "one step late",
        "the average of the step before",
        "The result of this step's collective is used one step later: wait before the optimizer's step, and write back "
        "after waiting.",
        lambda s: s.previous,
    ),
    GradientMistake(
        "rounded to float32",
        "the average, rounded to float32 on its way",
        "A communication buffer has a fixed dtype: allocate it with the gradient's own dtype.",
        lambda s: torch.stack([g.float() for g in s.own]).mean(0).double(),
    ),
    GradientMistake(
        "in memory order",
        "the average with its elements in another order: a tensor that is not contiguous was read in memory order and "
        "written in logical order",
        "Flatten with `.reshape(-1)` (or `.contiguous()`), and copy back through a view of the same kind.",
        _memory_order,
    ),
)


@dataclass(frozen=True)
class TrajectoryMistake:
    """A way to follow another schedule: what seems to have happened, what to look for, and that schedule."""

    name: str
    seen: str
    advice: str
    instead: Callable[[Scenario], Scenario]


def _groups(scenario: Scenario, options: Callable[[Options], Options]) -> Scenario:
    """Give every parameter group other options of its own, also groups that are added later."""
    groups = tuple(Group(group.parameters, options(group.options)) for group in scenario.optimizer.groups)
    schedule = tuple(
        AddGroup(event.step, Group(event.group.parameters, options(event.group.options)))
        if isinstance(event, AddGroup)
        else event
        for event in scenario.schedule
    )
    return replace(scenario, optimizer=replace(scenario.optimizer, groups=groups), schedule=schedule)


def _first_group(scenario: Scenario) -> Scenario:
    groups = scenario.optimizer.groups
    first = {**scenario.optimizer.options, **(groups[0].options if groups else {})}
    return _groups(scenario, lambda _: first)


def _without(scenario: Scenario, *kinds: type) -> Scenario:
    return replace(scenario, schedule=tuple(event for event in scenario.schedule if not isinstance(event, kinds)))


def _only(scenario: Scenario, *names: str) -> Scenario:
    """Keep only these of the optimizer's own options."""
    spec = scenario.optimizer
    kept = {name: value for name, value in spec.options.items() if name in names}
    return replace(scenario, optimizer=OptimizerSpec(spec.kind, kept, spec.groups))


def _frozen_lr(scenario: Scenario) -> Scenario:
    still = _groups(_without(scenario, SetOption, Decay), lambda options: {**options, "lr": 0.0})
    spec = still.optimizer
    return replace(still, optimizer=OptimizerSpec(spec.kind, {**spec.options, "lr": 0.0}, spec.groups))


def _rebuilt(scenario: Scenario) -> Scenario:
    changes = {event.step for event in scenario.schedule if isinstance(event, SetOption | AddGroup | SaveAndLoad)}
    kept = tuple(event for event in scenario.schedule if not isinstance(event, SaveAndLoad))
    return replace(scenario, schedule=kept + tuple(Rebuild(step) for step in sorted(changes) if step))


TRAJECTORY_MISTAKES = (
    TrajectoryMistake(
        "never trained",
        "parameters did not move at all",
        "The optimizer that steps must hold the parameters that the model uses.",
        _frozen_lr,
    ),
    TrajectoryMistake(
        "change of an option ignored",
        "training went on with the option as it was at construction",
        "The user and schedulers write to `optimizer.param_groups`: let the inner optimizer share those very dicts, or "
        "copy every option into it at the start of each step.",
        lambda s: _without(s, SetOption, Decay),
    ),
    TrajectoryMistake(
        "first group's options everywhere",
        "every parameter group was trained with the options of the first",
        "Give the inner optimizer one group per group of the user, each with its own options.",
        _first_group,
    ),
    TrajectoryMistake(
        "options of groups ignored",
        "every parameter group was trained with the options given to the constructor",
        "When `params` is a list of dicts, keep every key of each dict, not only `params`.",
        lambda s: _groups(s, lambda _: {}),
    ),
    TrajectoryMistake(
        "added group never trained",
        "the parameters added by `add_param_group` were never updated",
        "`add_param_group` must give the new parameters to owners, and to the inner optimizers of those.",
        lambda s: _without(s, AddGroup),
    ),
    TrajectoryMistake(
        "state lost",
        "momentum started again from nothing at the change",
        "The inner optimizer was built again, which drops its state: add to it in place.",
        _rebuilt,
    ),
    TrajectoryMistake(
        "only lr and weight decay passed on",
        "only `lr` and `weight_decay` reached the inner optimizer",
        "Pass all of `**kwargs` to `optimizer_cls`.",
        lambda s: _only(s, "lr", "weight_decay"),
    ),
)
BY_NAME = {mistake.name: mistake for mistake in TRAJECTORY_MISTAKES}
