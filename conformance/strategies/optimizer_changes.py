"""Strategies for optimizers that change while they train: groups, options, schedulers, freezing, saving."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Event,
    Freeze,
    Group,
    LoadWeights,
    OneCycle,
    Option,
    Options,
    Save,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)
from conformance.strategies.building_blocks import (
    STATEFUL,
    Bounds,
    Draw,
    Drawer,
    called,
    having,
    mapped,
    one_of,
    optimizers,
)
from conformance.strategies.optimizer import Names, draw_optimized, stepping
from conformance.strategies.param_groups import draw_own_options, draw_parted, grouped, in_groups, with_groups

_RATES = st.sampled_from((0.5, 0.001))
_TWO_OR_THREE = st.integers(2, 3)
_CHANGES: tuple[tuple[str, Option], ...] = (("lr", 0.5), ("lr", 0.001), ("weight_decay", 0.5))
_OWN_CHANGES: dict[str, tuple[tuple[str, Option], ...]] = {
    "SGD": (("momentum", 0.5),),
    "AdamW": (("betas", (0.5, 0.9)), ("eps", 0.1)),
}


def _draw_between(draw: Draw, least: int = 2, most: int = 3) -> tuple[int, int]:
    """Draw a number of steps, and one of them that is not the first."""
    steps = draw(st.integers(least, most))
    return steps, draw(st.integers(1, steps - 1))


def _draw_adding(draw: Draw, *, before_training: bool) -> tuple[int, int]:
    """Draw the number of steps, and the step before which a group is added."""
    return (draw(st.integers(1, 3)), 0) if before_training else _draw_between(draw, 2, 4)


def adding_group(*, before_training: bool) -> Drawer:
    """Return a strategy that adds a group with a parameter for every rank, before training or between two steps."""

    @st.composite
    def drawn(draw: Draw, bounds: Bounds) -> Scenario:
        steps, step = _draw_adding(draw, before_training=before_training)
        scenario, parts = draw_parted(draw, bounds, steps=steps)
        return _adding(draw, scenario, parts[1], step)

    return called(drawn, "adding_group", before_training)


def _by_generators(drawn: Scenario) -> Scenario:
    """Return the scenario with groups that come with generators of parameters."""
    return replace(drawn, optimizer=replace(drawn.optimizer, generators=True))


adding_before = adding_group(before_training=True)
adding_during = adding_group(before_training=False)
FROM_GENERATORS = (mapped(with_groups, _by_generators), mapped(adding_before, _by_generators))
clearing_added_group = one_of(
    *(having(adding_before, steps=1, cleared_by="optimizer", set_to_none=set_to_none) for set_to_none in (True, False))
)
saving = stepping(
    optimizer=STATEFUL, steps=_TWO_OR_THREE, schedule=(Save(1),), cleared_by=st.sampled_from(("optimizer", "model"))
)
loading_weights = stepping(steps=_TWO_OR_THREE, schedule=(LoadWeights(1),))
with_scheduler = stepping(steps=_TWO_OR_THREE, schedule=st.sampled_from(((Decay(0.5),), (Decay(0.1),))))
with_one_cycle = stepping(steps=st.integers(3, 4), schedule=st.sampled_from(((OneCycle(0.2),), (OneCycle(0.05),))))


@st.composite
def adding_small_group(draw: Draw, bounds: Bounds) -> Scenario:
    """A group of a single parameter is added, or one of all but one, to ranks of which all but one own none so far."""
    steps, step = _draw_adding(draw, before_training=draw(st.booleans()))
    scenario = draw_optimized(draw, bounds, more_layers=1, steps=steps)
    names = tuple(scenario.model.shapes)
    return _adding(draw, scenario, draw(st.sampled_from((names[-1:], names[1:]))), step)


def _adding(draw: Draw, scenario: Scenario, added: Names, step: int) -> Scenario:
    """Return the scenario with these parameters in a group with options of its own that is added before a step.

    They may have been frozen until then, as in gradual unfreezing.
    """
    group = Group(added, draw_own_options(draw, scenario.optimizer.kind))
    if not step or not draw(st.booleans()):
        return replace(scenario, schedule=(AddGroup(step, group),))
    model = replace(scenario.model, frozen=added)
    return replace(scenario, model=model, schedule=(Unfreeze(step, added), AddGroup(step, group)))


@st.composite
def adding_group_without_options(draw: Draw, bounds: Bounds) -> Scenario:
    """A group without options of its own is added to one that has some, before training or between two steps."""
    steps, step = _draw_adding(draw, before_training=draw(st.booleans()))
    scenario, (first, second) = draw_parted(draw, bounds, steps=steps)
    present = Group(first, draw_own_options(draw, scenario.optimizer.kind))
    return replace(grouped(scenario, present), schedule=(AddGroup(step, Group(second, {})),))


def _changing_lr(*, back: bool) -> Drawer:
    """Return a strategy that changes the learning rate through `param_groups`, and changes it `back` after a step.

    The rate may be zero for one step, as at the start of a warm-up; in a third of the scenarios there is one rank.
    """

    @st.composite
    def changing(draw: Draw, bounds: Bounds) -> Scenario:
        spec, rate = draw(optimizers()), draw(st.sampled_from((0.0, 0.5, 0.0, 0.001)))
        steps, step = _draw_between(draw, 2, 4)
        events: tuple[Event, ...] = (SetOption(step, "lr", rate),)
        if back or not rate:
            later = spec.options["lr"] if back else 0.2
            steps, events = step + 2, (*events, SetOption(step + 1, "lr", later))
        drawn = draw_optimized(draw, bounds, optimizer=spec, steps=steps, schedule=events)
        return drawn if draw(st.integers(0, 2)) else replace(drawn, world_size=1)

    return called(changing, "changing_lr", {"back": back})


changing_lr = one_of(_changing_lr(back=False), _changing_lr(back=True))


@st.composite
def changing_another_option(draw: Draw, bounds: Bounds) -> Scenario:
    """Other options than the learning rate are changed through `param_groups`; before, they may be 0, an int."""
    (steps, step), spec = _draw_between(draw, 2, 4), draw(optimizers())
    if draw(st.integers(0, 3)):
        kept: Options = {name: spec.options[name] for name in ("lr", "eps") if name in spec.options}
        spec = replace(spec, options=kept if spec.kind == "SGD" else {**kept, "weight_decay": 0})
    changes = (*_OWN_CHANGES[spec.kind], draw(st.sampled_from((("weight_decay", 0.5), ("maximize", True)))))
    events = tuple(SetOption(step, option, value) for option, value in changes)
    return draw_optimized(draw, bounds, optimizer=spec, steps=steps, schedule=events)


@st.composite
def changing_one_group(draw: Draw, bounds: Bounds) -> Scenario:
    """The learning rate of one of two groups, which may begin with the same options, is changed."""
    drawn: Scenario = draw(with_groups(bounds))
    if draw(st.booleans()):
        drawn = grouped(drawn, *(replace(group, options={}) for group in drawn.optimizer.groups))
    steps, step = _draw_between(draw)
    event = SetOption(step, "lr", draw(_RATES), draw(st.integers(0, 1)))
    return replace(drawn, steps=steps, schedule=(event,))


@st.composite
def changing_added_group(draw: Draw, bounds: Bounds) -> Scenario:
    """A group is added between two steps, and its learning rate changed, at once or later.

    Or it has no options of its own, and that of the other group was changed right before, or a step before.
    """
    drawn: Scenario = draw(adding_during(bounds))
    added, rate = next(one for one in drawn.schedule if isinstance(one, AddGroup)), draw(_RATES)
    if not draw(st.booleans()):
        plain = AddGroup(added.step, Group(added.group.parameters, {}))
        others = tuple(one for one in drawn.schedule if one is not added)
        changed = SetOption(draw(st.integers(added.step - 1, added.step)), "lr", rate)
        return replace(drawn, schedule=(changed, *others, plain))
    change = SetOption(draw(st.integers(added.step, drawn.steps - 1)), "lr", rate, draw(st.sampled_from((1, -1))))
    return replace(drawn, schedule=(*drawn.schedule, change))


@st.composite
def optimized_unfreezing(draw: Draw, bounds: Bounds) -> Scenario:
    """A frozen parameter of the optimizer begins to train between two steps; another one may be frozen then.

    The gradient of the other one is dropped, or left to the optimizer's `zero_grad`.
    """
    steps, step = _draw_between(draw)
    drawn = draw_optimized(draw, bounds, more_layers=1, steps=steps)
    frozen, other = draw(st.permutations(tuple(drawn.model.shapes)))[:2]
    later: tuple[Event, ...] = (Unfreeze(step, (frozen,)),)
    drops = draw(st.sampled_from((None, False, False, True)))
    later += () if drops is None else (Freeze(step, (other,), drops),)
    drawn = replace(drawn, model=replace(drawn.model, frozen=(frozen,)), schedule=later)
    return replace(drawn, cleared_by="optimizer") if drops is False else drawn


@st.composite
def saving_and_loading(draw: Draw, bounds: Bounds) -> Scenario:
    """Between two steps, the state of an optimizer moves to a new one; it has one group, or two.

    In half of the scenarios one parameter does not train, so that it has no state.
    """
    steps, load = _draw_between(draw)
    drawn, parts = draw_parted(draw, bounds, optimizer=STATEFUL, steps=steps, schedule=(SaveAndLoad(load),))
    if draw(st.booleans()):
        drawn = replace(drawn, model=replace(drawn.model, frozen=parts[0][:1]))
    return in_groups(draw, drawn, *parts) if draw(st.booleans()) else drawn


def _with_another_key(drawn: Scenario) -> Scenario:
    """Return the scenario with a key in each group that is no option, as schedulers write one."""
    return replace(drawn, schedule=(SetOption(1, "initial_lr", 0.5), *drawn.schedule))


saving_what_others_keep_there = mapped(saving_and_loading, _with_another_key)


@st.composite
def loading_changed_options(draw: Draw, bounds: Bounds) -> Scenario:
    """An option of all groups, or of one of two, is changed before the optimizer's state moves to a new optimizer.

    The first of two groups is a single parameter's, so that ranks that own others have the second one alone.
    """
    steps = draw(_TWO_OR_THREE)
    change, load = sorted(draw(st.integers(1, steps - 1)) for _ in range(2))
    (option, value), group = draw(st.sampled_from(_CHANGES)), draw(st.sampled_from((-1, 0, 1)))
    events = (SetOption(change, option, value, group), SaveAndLoad(load))
    drawn = draw_optimized(draw, bounds, optimizer=STATEFUL, steps=steps, schedule=events)
    names = tuple(drawn.model.shapes)
    return drawn if group < 0 else in_groups(draw, drawn, names[:1], names[1:])


@st.composite
def changing_options_after_loading(draw: Draw, bounds: Bounds) -> Scenario:
    """An option is changed right after the optimizer's state has moved to a new optimizer."""
    steps, load = _draw_between(draw)
    events = (SaveAndLoad(load), SetOption(load, *draw(st.sampled_from(_CHANGES))))
    return draw_optimized(draw, bounds, optimizer=STATEFUL, steps=steps, schedule=events)


@st.composite
def adding_group_after_loading(draw: Draw, bounds: Bounds) -> Scenario:
    """A group is added to a new optimizer that has loaded the state of an old one, at once or later."""
    steps = draw(_TWO_OR_THREE)
    scenario, (_, second) = draw_parted(draw, bounds, optimizer=STATEFUL, steps=steps)
    load, add = sorted(draw(st.integers(1, steps - 1)) for _ in range(2))
    added = AddGroup(add, Group(second, draw_own_options(draw, scenario.optimizer.kind)))
    return replace(scenario, schedule=(SaveAndLoad(load), added))


@st.composite
def groups_and_changes(draw: Draw, bounds: Bounds) -> Scenario:
    """Three groups with a parameter for every rank; one or two are added later. An option may change before.

    Steps get a closure, or gradients that are clipped, or neither.
    """
    steps = draw(st.integers(3, 4))
    unusual = draw(st.sampled_from(({"clip": 0.1}, {"closure": True}, {})))
    drawn = draw_optimized(draw, bounds, optimizer=STATEFUL, more_layers=bounds.world_size, steps=steps, **unusual)
    names = tuple(drawn.model.shapes)
    groups = [Group(names[part::3], draw_own_options(draw, drawn.optimizer.kind)) for part in range(3)]
    there, added = draw(st.integers(1, 2)), draw(st.integers(1, steps - 1))
    events: tuple[Event, ...] = (Decay(0.5),) if draw(st.booleans()) else ()
    events += (SetOption(draw(st.integers(1, added)), "lr", draw(_RATES), draw(st.sampled_from((0, -1)))),)
    events += tuple(AddGroup(draw(st.integers(added, steps - 1)), group) for group in groups[there:])
    return replace(grouped(drawn, *groups[:there]), schedule=events)
