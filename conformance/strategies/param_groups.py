"""Strategies for optimizers with parameter groups that have options of their own."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import AddGroup, Group, OptimizerSpec, Options, Scenario
from conformance.strategies.building_blocks import Bounds, Draw, broadened, draw_optimizer
from conformance.strategies.optimizer import Names, draw_optimized, draw_parted, draw_stateful


@st.composite
def with_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, each with a parameter for every rank."""
    drawn, parts = draw_parted(draw, bounds, draw_optimizer(draw))
    return in_groups(draw, drawn, *parts)


@st.composite
def with_small_group(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, one of a single parameter, which only one rank can own."""
    drawn = draw_optimized(draw, bounds, draw_optimizer(draw))
    names = tuple(drawn.model.shapes)
    alone = draw(st.sampled_from(names))
    groups = ((alone,), tuple(name for name in names if name != alone))
    return in_groups(draw, drawn, *(groups if draw(st.booleans()) else groups[::-1]))


def in_groups(draw: Draw, drawn: Scenario, first: Names, second: Names) -> Scenario:
    """Return the scenario with these two parameter groups, which have options of their own; the first never decays."""
    undecayed: Options = {"weight_decay": 0.0} if drawn.optimizer.options.get("weight_decay") else {}
    groups = (Group(first, {"lr": 0.05, **undecayed}), Group(second, draw_own_options(draw, drawn.optimizer.kind)))
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


@st.composite
def with_named_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own; each has a name, which is no option of the optimizer's."""
    drawn: Scenario = draw(with_groups(bounds))
    groups = [Group(one.parameters, {**one.options, "name": f"g{n}"}) for n, one in enumerate(drawn.optimizer.groups)]
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=tuple(groups)))


@st.composite
def with_empty_group(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, and one without parameters.

    That is among them, or added before the first step or the second.
    """
    drawn: Scenario = draw(with_groups(bounds))
    empty, at = Group((), {"lr": 0.3}), draw(st.integers(0, 4))
    if at > len(drawn.optimizer.groups):
        step = at - len(drawn.optimizer.groups) - 1
        return replace(drawn, steps=2, schedule=(AddGroup(step, empty),))
    groups = (*drawn.optimizer.groups[:at], empty, *drawn.optimizer.groups[at:])
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


@st.composite
def with_state_of_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Layers of many KiB whose state is kept, in two groups; or in one, and another that is added.

    SGD's momentum may be the groups' own, where the constructor is given none.
    """
    drawn, parts = draw_parted(draw, bounds, draw_stateful(draw), steps=2)
    scenario = in_groups(draw, replace(drawn, model=broadened(drawn.model)), *parts)
    if scenario.optimizer.kind == "SGD" and draw(st.booleans()):
        groups = tuple(replace(one, options={**one.options, "momentum": 0.9}) for one in scenario.optimizer.groups)
        scenario = replace(scenario, optimizer=OptimizerSpec("SGD", {"lr": 0.1}, groups))
    when = draw(st.sampled_from((None, 0, 1)))
    if when is None:
        return scenario
    present, added = scenario.optimizer.groups
    optimizer = replace(scenario.optimizer, groups=(present,))
    return replace(scenario, optimizer=optimizer, schedule=(AddGroup(when, added),))


@st.composite
def with_broad_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """The same with layers of many KiB."""
    drawn: Scenario = draw(with_groups(bounds))
    return replace(drawn, model=broadened(drawn.model))


def draw_own_options(draw: Draw, kind: str) -> Options:
    """Draw a parameter group's own options."""
    options: Options = {"lr": draw(st.sampled_from((0.01, 0.2)))}
    if draw(st.booleans()):
        options["weight_decay"] = 0.3
    if draw(st.booleans()):
        options |= {"momentum": 0.5} if kind == "SGD" else {"betas": (0.5, 0.9)}
    return options


@st.composite
def with_large_weights_in_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Four layers or more of similar size, each a parameter group of a weight and a bias that is much smaller.

    With four groups, two ranks, and all weights on one of them, that has two weights above an even share.
    """
    drawn = draw_optimized(draw, bounds, draw_stateful(draw), steps=1)
    width = draw(st.integers(5, 8))
    layers = (Linear(width),) * draw(st.integers(4, 5))
    names = (f"layers.{index}" for index in range(len(layers)))
    groups = tuple(Group((f"{name}.weight", f"{name}.bias"), {}) for name in names)
    model = broadened(ModelSpec(width, layers))
    return replace(drawn, model=model, optimizer=replace(drawn.optimizer, groups=groups))
