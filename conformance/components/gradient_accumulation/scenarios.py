"""Strategies for gradient accumulation: steps over micro-batches, on two ranks first, then on more, and on one."""

from dataclasses import replace
from functools import cache
from typing import Literal

from hypothesis import strategies as st

from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, worlds


@cache  # strategies with one name must be one strategy
def accumulations(
    *, steps: int = 1, scaled: bool = False, at: Literal["backward", "forward", "finish"] = "backward"
) -> Drawer:
    """Return a strategy of steps over two micro-batches, more, or one."""

    @st.composite
    def accumulating(draw: Draw, bounds: Bounds) -> AccumulationCase:
        micro_batches, samples = draw(st.sampled_from((2, 3, 4, 1))), draw(st.integers(1, 3))
        return AccumulationCase(draw(worlds(bounds)), draw(SEEDS), steps, micro_batches, samples, scaled, at=at)

    return called(accumulating, "accumulations", (steps, scaled, at))


@st.composite
def shrinking_accumulations(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """Two or three steps, the last of which has one micro-batch fewer."""
    case: AccumulationCase = draw(accumulations()(bounds))
    micro_batches = draw(st.integers(2, 4))
    return replace(case, steps=draw(st.integers(2, 3)), micro_batches=micro_batches, shrinking=True)


@st.composite
def overflowing(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """One rank's gradients are infinite in the first step."""
    case: AccumulationCase = draw(accumulations(steps=2, scaled=True)(bounds))
    return replace(case, overflow=draw(st.integers(0, case.world_size - 1)))
