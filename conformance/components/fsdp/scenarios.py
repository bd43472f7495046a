"""Strategies for fully sharded data parallelism: networks, and how they are trained."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.components.fsdp.case import FsdpCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, worlds


def sharded_trainings(
    *, wide: bool = False, uneven: bool = False, depths: tuple[int, int] = (2, 4), **unusual: Any
) -> Drawer:
    """Return a strategy of networks whose weights all ranks can share evenly, but for uneven ones.

    Wide ones have matrices that a share is small beside; depths are the least and the greatest number of matrices. In
    some, whole parameters are not gathered between steps, as in real training. What else is unusual is given by the
    names of `FsdpCase`.
    """

    @st.composite
    def training(draw: Draw, bounds: Bounds) -> FsdpCase:
        world_size, seed = draw(worlds(bounds)), draw(SEEDS)
        least = 8 if wide else 1
        size = st.integers(least, least + 4) if uneven else _shared_evenly(world_size, least)
        depth = draw(st.integers(*depths))
        tokens, widths = draw(size), tuple(draw(size) for _ in range(depth))
        seldom, batch = draw(st.sampled_from((False, True))), draw(st.integers(1, 3))
        steps, options = draw(st.integers(1 + seldom, 3)), {"seldom_gathered": seldom, **unusual}
        return FsdpCase(world_size, seed, tokens=tokens, widths=widths, steps=steps, batch=batch, **options)

    return called(training, "sharded_trainings", (wide, uneven, depths, unusual))


def _shared_evenly(world_size: int, least: int) -> st.SearchStrategy[int]:
    """Multiples of the world size from `least` on: three of them, or two where it is large."""
    first = math.ceil(least / world_size)
    return st.integers(first, first + (2 if world_size == 1 else 1)).map(lambda parts: parts * world_size)


@st.composite
def weighed_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Ten layers, so wide, and given so few tokens, that every whole weight is larger than anything else.

    On one rank, nothing need be gathered: there are two at least, where there may be.
    """
    drawn = sharded_trainings(wide=True, depths=(10, 10), weighed=True)(bounds)
    case: FsdpCase = draw(drawn.filter(lambda one: one.world_size > 1 or bounds.world_size == 1))
    return replace(case, batch=1)


@st.composite
def lasting_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Seven steps, after each of which is counted what lives."""
    case: FsdpCase = draw(sharded_trainings(counted=True)(bounds))
    return replace(case, steps=7)


@st.composite
def tied_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Linear layers of one width but for the last, whose weight is the embedding's."""
    case: FsdpCase = draw(sharded_trainings(tied=True)(bounds))
    return replace(case, widths=(case.widths[0],) * (len(case.widths) - 1) + (case.tokens,))


@st.composite
def trainings_with_a_layer_used_twice(draw: Draw, bounds: Bounds) -> FsdpCase:
    """The first linear layer, which computes twice, keeps the width."""
    case: FsdpCase = draw(sharded_trainings(again=True)(bounds))
    return replace(case, widths=(case.widths[0],) * 2 + case.widths[2:])
