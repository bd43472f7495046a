"""What known mistakes of optimizers amount to: training by another schedule.

The diagnosis looks for the one that leads to what was seen. A scenario on which a mistake that matters leads to the
same parameters as correct code cannot tell them apart, and is not used.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Event,
    Group,
    LoadWeights,
    OneCycle,
    OptimizerSpec,
    Options,
    Rebuild,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)


@dataclass(frozen=True)
class TrainingMistake:
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


def _never_added(scenario: Scenario) -> Scenario:
    """Put off every added group until training is over, and leave out changes of one."""
    there = max(1, len(scenario.optimizer.groups))
    kept = (event for event in scenario.schedule if not isinstance(event, SetOption) or event.group < there)
    schedule = (replace(e, step=scenario.steps) if isinstance(e, AddGroup) else e for e in kept)
    return replace(scenario, schedule=tuple(schedule))


def _only_lr(scenario: Scenario) -> Scenario:
    """Drop all changes of other options."""
    kept = (e for e in scenario.schedule if not isinstance(e, SetOption) or e.option == "lr")
    return replace(scenario, schedule=tuple(replace(e, momentum=False) if isinstance(e, OneCycle) else e for e in kept))


def _everywhere(scenario: Scenario) -> Scenario:
    """Let every change of an option concern all groups."""
    schedule = (replace(e, group=-1) if isinstance(e, SetOption) else e for e in scenario.schedule)
    return replace(scenario, schedule=tuple(schedule))


def _options_of_construction(scenario: Scenario) -> Scenario:
    """At each loading, write the options of construction back where they had been changed before."""
    schedule, changed = list[Event](), set[str]()
    for event in scenario.schedule:
        schedule.append(event)
        if isinstance(event, SetOption):
            changed.add(event.option)
        elif isinstance(event, SaveAndLoad):
            options = scenario.optimizer.options
            schedule += [SetOption(event.step, name, options[name]) for name in sorted(changed & options.keys())]
    return replace(scenario, schedule=tuple(schedule))


def _only(scenario: Scenario, *names: str) -> Scenario:
    """Keep only these of the optimizer's own options."""
    spec = scenario.optimizer
    kept = {name: value for name, value in spec.options.items() if name in names}
    return replace(scenario, optimizer=OptimizerSpec(spec.kind, kept, spec.groups))


def _frozen_lr(scenario: Scenario) -> Scenario:
    still = _groups(_without(scenario, SetOption, Decay, OneCycle), lambda options: {**options, "lr": 0.0})
    spec = still.optimizer
    return replace(still, optimizer=OptimizerSpec(spec.kind, {**spec.options, "lr": 0.0}, spec.groups))


def _rebuilt(scenario: Scenario) -> Scenario:
    """Rebuild the optimizer wherever something about it changes."""
    changes = {event.step for event in scenario.schedule if isinstance(event, SetOption | AddGroup)}
    return replace(scenario, schedule=scenario.schedule + tuple(Rebuild(step) for step in sorted(changes) if step))


def _never_loaded(scenario: Scenario) -> Scenario:
    """Let the new optimizer begin without the state that was saved."""
    schedule = (Rebuild(event.step) if isinstance(event, SaveAndLoad) else event for event in scenario.schedule)
    return replace(scenario, schedule=tuple(schedule))


def _without_memory(scenario: Scenario) -> Scenario:
    """Rebuild the optimizer before every step; where a new one takes over, that is a matter of what it loads."""
    loads = any(isinstance(event, SaveAndLoad) for event in scenario.schedule)
    steps = range(1, 1 if loads else scenario.steps)
    return replace(scenario, schedule=scenario.schedule + tuple(Rebuild(step) for step in steps))


TRAINING_MISTAKES = (
    TrainingMistake(
        "never trained",
        "parameters did not move at all",
        "The optimizer that steps must hold the parameters that the model uses.",
        _frozen_lr,
    ),
    TrainingMistake(
        "saved options lost",
        "training went on with the options that the new optimizer was made with, not with those that were saved",
        "Save the options of all `param_groups` in `state_dict`, and let `load_state_dict` write them back.",
        _options_of_construction,
    ),
    TrainingMistake(
        "only changes of lr take effect",
        "a new learning rate was used, and another option stayed as it was at construction",
        "Copy every option of `optimizer.param_groups` into the inner optimizer at the start of each step, not `lr` "
        "alone.",
        _only_lr,
    ),
    TrainingMistake(
        "change of an option ignored",
        "training went on with the option as it was at construction",
        "The user and schedulers write to `optimizer.param_groups`: let the inner optimizer share those very dicts, or "
        "copy every option into it at the start of each step.",
        lambda s: _without(s, SetOption, Decay, OneCycle),
    ),
    TrainingMistake(
        "change of one group made in all",
        "an option that was changed in one parameter group was changed in the others too",
        "Keep the options of each group of `param_groups` apart, and copy each into its own inner group.",
        _everywhere,
    ),
    TrainingMistake(
        "first group's options everywhere",
        "every parameter group was trained with the options of the first",
        "Give the inner optimizer one group per group of the user, each with its own options.",
        _first_group,
    ),
    TrainingMistake(
        "options of groups ignored",
        "every parameter group was trained with the options given to the constructor",
        "When `params` is a list of dicts, keep every key of each dict, not only `params`.",
        lambda s: _groups(s, lambda _: {}),
    ),
    TrainingMistake(
        "added group never trained",
        "the parameters added by `add_param_group` were never updated",
        "`add_param_group` must give the new parameters to owners, and to the inner optimizers of those.",
        _never_added,
    ),
    TrainingMistake(
        "unfrozen parameter never trained",
        "parameters that were frozen when the optimizer was made, and let train later, were never updated",
        "Give every parameter an owner and a place in the inner optimizer, also where it does not require gradients: a "
        "step passes over those without one.",
        lambda s: _without(s, Unfreeze),
    ),
    TrainingMistake(
        "loaded weights not used",
        "training went on as if nothing had been loaded into the wrapped model",
        "What `load_state_dict` is given must reach the parameters that the model computes with: let `nn.Module`'s own "
        "do it, under the names that `state_dict` has; do not let it pass over names, and keep no copy of parameters.",
        lambda s: _without(s, LoadWeights),
    ),
    TrainingMistake(
        "penalty not trained on",
        "training went on as if the gradient by the inputs, a part of the loss, were a constant",
        "Let that gradient keep its graph on its way through the wrapper: what it passes there (an "
        "`autograd.Function`, a hook) must not detach it.",
        lambda s: replace(s, penalised=False),
    ),
    TrainingMistake(
        "gradients of before clipping",
        "the step used the gradients as they were before they were clipped",
        "Use `.grad` as it is when `step` is called: keep no copy of what backward left there.",
        lambda s: replace(s, clip=None),
    ),
    TrainingMistake(
        "saved state lost",
        "the new optimizer went on without the momentum that was saved",
        "`state_dict` must hold the state of the inner optimizers, and `load_state_dict` hand each its own: what "
        "`torch.optim.Optimizer` gives by itself is the outer one's `state`, which is empty.",
        _never_loaded,
    ),
    TrainingMistake(
        "state lost",
        "momentum started again from nothing at the change",
        "The inner optimizer was built again, which drops its state: add to it in place.",
        _rebuilt,
    ),
    TrainingMistake(
        "state lost at every step",
        "each step was done as if it were the first, without momentum",
        "The inner optimizer's state must outlive `step`: build it once, and do not clear what it keeps.",
        _without_memory,
    ),
    TrainingMistake(
        "only lr and weight decay passed on",
        "only `lr` and `weight_decay` reached the inner optimizer",
        "Pass all of `**kwargs` to `optimizer_cls`.",
        lambda s: _only(s, "lr", "weight_decay"),
    ),
)
BY_NAME = {mistake.name: mistake for mistake in TRAINING_MISTAKES}
