"""Strategies in which several unusual things come together: of wrapped models, and of optimizers with groups."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import AddGroup, Decay, Event, Group, Scenario, SetOption
from conformance.strategies.building_blocks import (
    RATES,
    Bounds,
    Draw,
    decaying,
    draw_convolution,
    draw_model,
    draw_other_layers,
)
from conformance.strategies.optimizer import draw_optimized, draw_stateful
from conformance.strategies.param_groups import draw_own_options
from conformance.strategies.wrapper import draw_frozen, draw_tied, draw_wrapped


@st.composite
def mixed(draw: Draw, bounds: Bounds) -> Scenario:
    """A model of any layers, most of what may be unusual about it, and a schedule."""
    steps = draw(st.integers(2, 3))
    scenario = draw_wrapped(
        draw,
        bounds,
        _draw_unusual(draw),
        steps=steps,
        uneven=_mostly(draw),
        evaluates=_mostly(draw),
        set_to_none=draw(st.booleans()),
        clip=draw(st.sampled_from((None, 0.5, 0.1))),
        schedule=_draw_events(draw, steps),
    )
    return decaying(scenario)


def _draw_unusual(draw: Draw) -> ModelSpec:
    kinds = (_draw_linear, draw_convolution, draw_other_layers, draw_tied)
    model = draw(st.sampled_from(kinds))(draw)
    model = replace(model, scale=_mostly(draw), keyword=_mostly(draw))
    if model.tied is None and _mostly(draw):
        model = replace(model, transposed=0)
    return draw_frozen(draw, model) if len(model.shapes) > 1 and _mostly(draw) else model


def _draw_linear(draw: Draw) -> ModelSpec:
    return draw_model(draw, layers=(2, 3))


def _draw_events(draw: Draw, steps: int) -> tuple[Event, ...]:
    """Draw a scheduler, a change of the learning rate between two steps, both or neither."""
    later, rate = draw(st.integers(1, steps - 1)), draw(st.sampled_from(RATES)) / 2
    events: tuple[Event, ...] = (Decay(0.5),) if draw(st.booleans()) else ()
    return (*events, SetOption(later, "lr", rate)) if draw(st.booleans()) else events


@st.composite
def groups_and_changes(draw: Draw, bounds: Bounds) -> Scenario:
    """Three groups with a parameter for every rank, one or two of them added later; the others may be changed before.

    Steps get a closure, or gradients that are clipped, or neither.
    """
    steps = draw(st.integers(3, 4))
    unusual = draw(st.sampled_from(({"clip": 0.1}, {"closure": True}, {})))
    drawn = draw_optimized(draw, bounds, draw_stateful(draw), more_layers=bounds.world_size, steps=steps, **unusual)
    names = tuple(drawn.model.shapes)
    groups = [Group(names[part::3], draw_own_options(draw, drawn.optimizer.kind)) for part in range(3)]
    there, added = draw(st.integers(1, 2)), draw(st.integers(1, steps - 1))
    rate, changed = draw(st.sampled_from((0.5, 0.001))), draw(st.sampled_from((0, -1)))
    events: tuple[Event, ...] = (Decay(0.5),) if draw(st.booleans()) else ()
    events += (SetOption(draw(st.integers(1, added)), "lr", rate, changed),)
    events += tuple(AddGroup(draw(st.integers(added, steps - 1)), group) for group in groups[there:])
    return replace(drawn, optimizer=replace(drawn.optimizer, groups=tuple(groups[:there])), schedule=events)


def _mostly(draw: Draw) -> bool:
    return bool(draw(st.integers(0, 3)))
