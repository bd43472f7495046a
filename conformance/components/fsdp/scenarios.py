"""Strategies for fully sharded data parallelism: networks, and how they are trained."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.layers import Again, Layer, Linear, SmoothNorm, TokenEmbedding
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import OptimizerSpec
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, worlds

FIRST_LINEAR = 2
_POSITIONS = 2
_ADAMW = OptimizerSpec("AdamW", {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1})
PLAIN_SGD = OptimizerSpec("SGD", {"lr": 0.05})  # an update is as exact as the gradient: where that is small too


def network(tokens: int, widths: tuple[int, ...], *, biased: bool = False, **model: Any) -> ModelSpec:
    """Return a network with these widths of the embedding and of the linear layers' outputs."""
    linear = (Linear(width, bias=biased) for width in widths[1:])
    layers: tuple[Layer, ...] = (TokenEmbedding(tokens, widths[0]), SmoothNorm(), *linear)
    return ModelSpec(_POSITIONS, layers, **{"dtype": "float32", **model})


def sharded_trainings(
    *,
    wide: bool = False,
    uneven: bool = False,
    depths: tuple[int, int] = (2, 4),
    biased: bool = False,
    model: dict[str, Any] | None = None,
    **unusual: Any,
) -> Drawer:
    """Return a strategy of networks whose weights all ranks can share evenly, but for uneven ones.

    Wide ones have matrices that a share is small beside; depths are the least and the greatest number of matrices. In
    some, whole parameters are not gathered between steps, as in real training. What else is unusual is given by the
    names of `ModelSpec` and of `FsdpCase`.
    """

    @st.composite
    def training(draw: Draw, bounds: Bounds) -> FsdpCase:
        world_size, seed = draw(worlds(bounds)), draw(SEEDS)
        least = 8 if wide else 1
        size = st.integers(least, least + 4) if uneven else _shared_evenly(world_size, least)
        depth = draw(st.integers(*depths))
        drawn = network(draw(size), tuple(draw(size) for _ in range(depth)), biased=biased, **(model or {}))
        seldom, batch = draw(st.sampled_from((False, True))), draw(st.integers(1, 3))
        steps, options = draw(st.integers(1 + seldom, 3)), {"optimizer": _ADAMW, "seldom_gathered": seldom, **unusual}
        return FsdpCase(world_size, drawn, steps=steps, batch=batch, seed=seed, **options)

    return called(training, "sharded_trainings", (wide, uneven, depths, biased, model, unusual))


def _shared_evenly(world_size: int, least: int) -> st.SearchStrategy[int]:
    """Multiples of the world size from `least` on: three of them, or two where it is large."""
    first = math.ceil(least / world_size)
    return st.integers(first, first + (2 if world_size == 1 else 1)).map(lambda parts: parts * world_size)


def weighed_trainings(**unusual: Any) -> Drawer:
    """Return a strategy of ten layers, so wide, and given so few tokens, that whole weights are larger than all else.

    On one rank, nothing need be gathered: there are two at least, where there may be.
    """

    def weighed(bounds: Bounds) -> st.SearchStrategy[FsdpCase]:
        drawn = sharded_trainings(wide=True, depths=(10, 10), weighed=True, **unusual)(bounds)
        several = drawn.filter(lambda one: one.world_size > 1 or bounds.world_size == 1)
        return several.map(lambda one: replace(one, batch=1))

    return called(weighed, "weighed_trainings", unusual)


@st.composite
def tied_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Linear layers of one width but for the last, whose weight is the embedding's."""
    case: FsdpCase = draw(sharded_trainings()(bounds))
    (tokens, width), depth = case.matrices[0], len(case.matrices)
    widths = (width,) * (depth - 1) + (tokens,)
    return replace(case, model=network(tokens, widths, tied=(0, depth)))


@st.composite
def trainings_with_a_layer_used_twice(draw: Draw, bounds: Bounds) -> FsdpCase:
    """The first linear layer, which computes twice, keeps the width."""
    case: FsdpCase = draw(sharded_trainings()(bounds))
    embedding, norm, _, *others = case.model.layers
    kept = Linear(case.matrices[0][1], bias=False)
    return replace(case, model=replace(case.model, layers=(embedding, norm, kept, Again(FIRST_LINEAR), *others)))
