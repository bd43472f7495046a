"""Known mistakes of optimizers, each as the schedule that the training follows in effect.

The diagnosis looks for the mistake whose schedule leads to the parameters that ranks reported. A check skips a scenario
on which the mistakes that it is to find lead to the same parameters as correct code.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Event,
    Group,
    LoadWeights,
    OneCycle,
    Options,
    Rebuild,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)


class TrainingMistake(NamedTuple):
    """A way to follow another schedule.

    Attributes:
        name: what a report calls it.
        seen: what seems to have happened.
        advice: what to do about it.
        instead: returns the scenario that the training follows in effect; the same scenario if the mistake cannot show.
    """

    name: str
    seen: str
    advice: str
    instead: Callable[[Scenario], Scenario]


def _changing(scenario: Scenario, change: Callable[[Event], Event]) -> Scenario:
    """Change every event of the schedule."""
    return replace(scenario, schedule=tuple(map(change, scenario.schedule)))


def _without(scenario: Scenario, *kinds: type) -> Scenario:
    """Drop the events of these kinds."""
    return replace(scenario, schedule=tuple(event for event in scenario.schedule if not isinstance(event, kinds)))


def _rebuilding(scenario: Scenario, steps: Iterable[int]) -> Scenario:
    """Rebuild the optimizer before these steps."""
    return replace(scenario, schedule=scenario.schedule + tuple(map(Rebuild, steps)))


def _with_options(scenario: Scenario, change: Callable[[Options], Options]) -> Scenario:
    """Change the options that are given to the optimizer."""
    spec = scenario.optimizer
    return replace(scenario, optimizer=replace(spec, options=change(spec.options)))


def _groups(scenario: Scenario, change: Callable[[Options], Options]) -> Scenario:
    """Change the options of every parameter group, also of groups that are added later."""

    def changed(event: Event) -> Event:
        if not isinstance(event, AddGroup):
            return event
        return replace(event, group=replace(event.group, options=change(event.group.options)))

    spec = scenario.optimizer
    groups = tuple(replace(group, options=change(group.options)) for group in spec.groups)
    return _changing(replace(scenario, optimizer=replace(spec, groups=groups)), changed)


def _first_group(scenario: Scenario) -> Scenario:
    groups = scenario.optimizer.groups
    first = {**scenario.optimizer.options, **(groups[0].options if groups else {})}
    return _groups(scenario, lambda _: first)


def _only_first_group(scenario: Scenario) -> Scenario:
    """Train the parameters of the first group only, and drop the changes of other groups."""
    first, *others = scenario.optimizer.groups or (Group((), {}),)
    still = (replace(group, options={**group.options, "lr": 0.0}) for group in others)
    kept = (event for event in scenario.schedule if not isinstance(event, OneCycle))
    kept = (event for event in kept if not isinstance(event, SetOption) or event.group == 0)
    optimizer = replace(scenario.optimizer, groups=(first, *still) if others else scenario.optimizer.groups)
    return replace(scenario, optimizer=optimizer, schedule=tuple(kept)) if others else scenario


def _never_added(scenario: Scenario) -> Scenario:
    """Delay every added group until after the last step, and drop the changes of such a group."""
    there = max(1, len(scenario.optimizer.groups))
    kept = (event for event in scenario.schedule if not isinstance(event, SetOption) or event.group < there)
    schedule = (replace(e, step=scenario.steps) if isinstance(e, AddGroup) else e for e in kept)
    return replace(scenario, schedule=tuple(schedule))


def _only_lr(scenario: Scenario) -> Scenario:
    """Keep only the changes of the learning rate."""
    kept = (e for e in scenario.schedule if not isinstance(e, SetOption) or e.option == "lr")
    return replace(scenario, schedule=tuple(replace(e, momentum=False) if isinstance(e, OneCycle) else e for e in kept))


def _options_of_construction(scenario: Scenario) -> Scenario:
    """At each load, set changed options back to their values at construction."""
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
    """Keep only these options of the optimizer."""
    return _with_options(scenario, lambda options: {name: options[name] for name in names if name in options})


def _frozen_lr(scenario: Scenario) -> Scenario:
    still = _groups(_without(scenario, SetOption, Decay, OneCycle), lambda options: {**options, "lr": 0.0})
    return _with_options(still, lambda options: {**options, "lr": 0.0})


def _rebuilt(scenario: Scenario) -> Scenario:
    """Rebuild the optimizer at every change of its options or groups."""
    changes = {event.step for event in scenario.schedule if isinstance(event, SetOption | AddGroup)}
    return _rebuilding(scenario, sorted(changes - {0}))


def _without_memory(scenario: Scenario) -> Scenario:
    """Rebuild the optimizer before every step, unless the scenario saves and loads its state."""
    loads = any(isinstance(event, SaveAndLoad) for event in scenario.schedule)
    return _rebuilding(scenario, range(1, 1 if loads else scenario.steps))


# fmt: off
_ALL = (
    TrainingMistake("never trained",
        "parameters did not move at all",
        "The optimizer that steps must hold the parameters that the model uses.",
        _frozen_lr),
    TrainingMistake("saved options lost",
        "training went on with the options given to the new optimizer, not with the saved ones",
        "Save the options of all `param_groups` in `state_dict`, and let `load_state_dict` write them back.",
        _options_of_construction),
    TrainingMistake("only changes of lr take effect",
        "a new learning rate was used, and another option stayed as it was at construction",
        "Copy every option of `optimizer.param_groups` into the inner optimizer at the start of each step, not only "
        "`lr`.",
        _only_lr),
    TrainingMistake("change of an option ignored",
        "training went on with the option as it was at construction",
        "The user and schedulers write to `optimizer.param_groups`: let the inner optimizer share these dicts, or copy "
        "every option into it at the start of each step.",
        lambda s: _without(s, SetOption, Decay, OneCycle)),
    TrainingMistake("change of one group made in all",
        "an option that was changed in one parameter group was changed in the others too",
        "Copy the options of each group of `param_groups` into its own inner group only.",
        lambda s: _changing(s, lambda e: replace(e, group=-1) if isinstance(e, SetOption) else e)),
    TrainingMistake("first group's options everywhere",
        "every parameter group was trained with the options of the first",
        "Give the inner optimizer one group for each group of the user, with the options of that group.",
        _first_group),
    TrainingMistake("options of groups ignored",
        "every parameter group was trained with the options given to the constructor",
        "When `params` is a list of dicts, keep every key of each dict, not only `params`.",
        lambda s: _groups(s, lambda _: {})),
    TrainingMistake("only the first group trained",
        "parameters of the other parameter groups were never updated",
        "Deal out the parameters of every group of `param_groups`, not those of `param_groups[0]` alone.",
        _only_first_group),
    TrainingMistake("added group never trained",
        "the parameters added by `add_param_group` were never updated",
        "`add_param_group` must give each new parameter an owner, and add it to the owner's inner optimizer.",
        _never_added),
    TrainingMistake("unfrozen parameter never trained",
        "parameters that were frozen when the optimizer was made, and unfrozen later, were never updated",
        "Give every parameter an owner and a place in the inner optimizer, even if it does not require gradients: "
        "`step` skips parameters without a gradient.",
        lambda s: _without(s, Unfreeze)),
    TrainingMistake("loaded weights not used",
        "training went on as if nothing had been loaded into the wrapped model",
        "`load_state_dict` must write into the parameters that the model computes with. Leave it to `nn.Module`'s own "
        "method and the names in `state_dict`; do not skip names that are missing, and keep no copy of parameters.",
        lambda s: _without(s, LoadWeights)),
    TrainingMistake("penalty not trained on",
        "training went on as if the gradient with respect to the inputs, a part of the loss, were a constant",
        "The wrapper must not detach this gradient from its graph, for example in an `autograd.Function` or a hook.",
        lambda s: replace(s, penalised=False)),
    TrainingMistake("gradients of before clipping",
        "the step used the gradients as they were before clipping",
        "Use `.grad` as it is when `step` is called: keep no copy of the gradients of backward.",
        lambda s: replace(s, clip=None)),
    TrainingMistake("saved state lost",
        "the new optimizer went on without the momentum that was saved",
        "`state_dict` must hold the state of the inner optimizers, and `load_state_dict` must give each its own. The "
        "method of `torch.optim.Optimizer` returns the outer optimizer's `state`, which is empty.",
        lambda s: _changing(s, lambda e: Rebuild(e.step) if isinstance(e, SaveAndLoad) else e)),
    TrainingMistake("state lost",
        "momentum started again from zero at the change",
        "The inner optimizer was built again, which drops its state: change it in place.",
        _rebuilt),
    TrainingMistake("state lost at every step",
        "each step was made as if it were the first, without momentum",
        "The inner optimizer's state must outlive `step`: build the optimizer once, and do not clear its state.",
        _without_memory),
    TrainingMistake("only lr and weight decay passed on",
        "only `lr` and `weight_decay` reached the inner optimizer",
        "Pass all of `**kwargs` to `optimizer_cls`.",
        lambda s: _only(s, "lr", "weight_decay")),
)
# fmt: on
TRAINING_MISTAKES = {mistake.name: mistake for mistake in _ALL}
