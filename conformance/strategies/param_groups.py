"""Strategies for optimizers with parameter groups that have options of their own."""

from dataclasses import replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import AddGroup, Group, OptimizerSpec, Options, Scenario
from conformance.strategies.building_blocks import STATEFUL, Bounds, Draw, broad, mapped
from conformance.strategies.dealing import leaves_nobody_empty
from conformance.strategies.optimizer import Names, draw_large_weights, draw_optimized


def draw_parted(draw: Draw, bounds: Bounds, **attributes: Any) -> tuple[Scenario, tuple[Names, Names]]:
    """Draw a scenario, and its parameters in two parts, each of which leaves no rank empty, however it is dealt out."""
    drawn = draw_optimized(draw, bounds, more_layers=bounds.world_size // 2, **attributes)
    names, ranks = tuple(drawn.model.shapes), drawn.world_size
    cuts = [(names[:cut], names[cut:]) for cut in range(ranks, len(names) - ranks + 1)]
    parted = [
        parts
        for parts in (*cuts, (names[::2], names[1::2]))
        if all(leaves_nobody_empty(drawn.model, part, ranks) for part in parts)
    ]
    assume(parted)
    return drawn, draw(st.sampled_from(parted))


def draw_own_options(draw: Draw, kind: str) -> Options:
    """Draw a parameter group's own options."""
    options: Options = {"lr": draw(st.sampled_from((0.01, 0.2)))}
    if draw(st.booleans()):
        options["weight_decay"] = 0.3
    if draw(st.booleans()):
        options |= {"momentum": 0.5} if kind == "SGD" else {"betas": (0.5, 0.9)}
    return options


def grouped(drawn: Scenario, *groups: Group) -> Scenario:
    """Return the scenario with these parameter groups."""
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=groups))


def in_groups(draw: Draw, drawn: Scenario, first: Names, second: Names) -> Scenario:
    """Return the scenario with two parameter groups that have options of their own; the first never decays."""
    undecayed: Options = {"weight_decay": 0.0} if drawn.optimizer.options.get("weight_decay") else {}
    own = draw_own_options(draw, drawn.optimizer.kind)
    return grouped(drawn, Group(first, {"lr": 0.05, **undecayed}), Group(second, own))


def _adding_second(draw: Draw, drawn: Scenario) -> Scenario:
    """Return the scenario, or one in which the second group is added before the first step or before the second."""
    first, second = drawn.optimizer.groups
    when = draw(st.sampled_from((None, 0, 1)))
    return drawn if when is None else replace(grouped(drawn, first), schedule=(AddGroup(when, second),))


@st.composite
def with_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, each with a parameter for every rank."""
    drawn, parts = draw_parted(draw, bounds)
    return in_groups(draw, drawn, *parts)


@st.composite
def with_small_group(draw: Draw, bounds: Bounds) -> Scenario:
    """Two parameter groups with options of their own, one of a single parameter, which only one rank can own."""
    drawn = draw_optimized(draw, bounds)
    names = tuple(drawn.model.shapes)
    alone = draw(st.sampled_from(names))
    groups = ((alone,), tuple(name for name in names if name != alone))
    return in_groups(draw, drawn, *(groups if draw(st.booleans()) else groups[::-1]))


def _named(drawn: Scenario) -> Scenario:
    """Return the scenario with a name in each group, which is no option of the optimizer's."""
    groups = enumerate(drawn.optimizer.groups)
    return grouped(drawn, *(Group(one.parameters, {**one.options, "name": f"g{n}"}) for n, one in groups))


with_named_groups = mapped(with_groups, _named)
with_broad_groups = mapped(with_groups, broad)


@st.composite
def with_empty_group(draw: Draw, bounds: Bounds) -> Scenario:
    """A third group has no parameters: it is among the others, or added before the first step or the second."""
    drawn: Scenario = draw(with_groups(bounds))
    groups, empty, at = list(drawn.optimizer.groups), Group((), {"lr": 0.3}), draw(st.integers(0, 4))
    if at > len(groups):
        return replace(drawn, steps=2, schedule=(AddGroup(at - len(groups) - 1, empty),))
    return grouped(drawn, *groups[:at], empty, *groups[at:])


@st.composite
def with_state_of_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Layers of many KiB whose state is kept, in two groups, the second of which may be added later.

    SGD's momentum may be an option of the groups, if the constructor is given none.
    """
    drawn, parts = draw_parted(draw, bounds, optimizer=STATEFUL, steps=2)
    scenario = in_groups(draw, broad(drawn), *parts)
    if scenario.optimizer.kind == "SGD" and draw(st.booleans()):
        groups = tuple(replace(one, options={**one.options, "momentum": 0.9}) for one in scenario.optimizer.groups)
        scenario = replace(scenario, optimizer=OptimizerSpec("SGD", {"lr": 0.1}, groups))
    return _adding_second(draw, scenario)


@st.composite
def with_large_weights_in_two_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Many large weights in two groups, the second of which may be added later."""
    drawn = draw_large_weights(draw, bounds, 8, bias=False, steps=2)
    names = tuple(drawn.model.shapes)
    half = len(names) // 2
    return _adding_second(draw, grouped(drawn, Group(names[:half], {}), Group(names[half:], {})))


@st.composite
def with_large_weights_in_groups(draw: Draw, bounds: Bounds) -> Scenario:
    """Four layers or more of similar size, each a parameter group of a weight and a bias that is much smaller.

    If one of two ranks gets the weights of all four groups, it has two weights more than an even share.
    """
    width = draw(st.integers(5, 8))
    model = ModelSpec(width, (Linear(width),) * draw(st.integers(4, 5)))
    drawn = broad(draw_optimized(draw, bounds, model=model, optimizer=STATEFUL, steps=1))
    names = (f"layers.{index}" for index in range(len(model.layers)))
    return grouped(drawn, *(Group((f"{name}.weight", f"{name}.bias"), {}) for name in names))
