"""Strategies for fully sharded data parallelism: networks, and how they are trained."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.layers import Again, Layer, Linear, SmoothNorm, TokenEmbedding
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import OptimizerSpec
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, mapped, worlds

FIRST_LINEAR = 2
_POSITIONS = 2
_ADAMW = OptimizerSpec("AdamW", {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1})
PLAIN_SGD = OptimizerSpec("SGD", {"lr": 0.05})  # an update is as exact as the gradient: where that is small too


def network(tokens: int, *widths: int, **options: Any) -> ModelSpec:
    """Return a network with these widths of the embedding and of the linear layers' outputs."""
    linear = (Linear(width, bias=False) for width in widths[1:])
    layers: tuple[Layer, ...] = (TokenEmbedding(tokens, widths[0]), SmoothNorm(), *linear)
    return ModelSpec(_POSITIONS, layers, dtype="float32", **options)


def sharded_trainings(*, wide: bool = False, uneven: bool = False, depths: tuple[int, int] = (2, 4)) -> Drawer:
    """Return a strategy of networks whose weights all ranks can share evenly, but for uneven ones.

    In uneven ones, the ranks can divide neither the rows of the embedding nor all of its elements evenly. Wide ones
    have matrices that a share is small beside; depths are the least and the greatest number of matrices. In some, whole
    parameters are not gathered between steps, as in real training.
    """

    @st.composite
    def training(draw: Draw, bounds: Bounds) -> FsdpCase:
        world_size, seed = draw(worlds(bounds)), draw(SEEDS)
        least = 8 if wide else 1
        size = st.integers(least, least + 4) if uneven else _shared_evenly(world_size, least)
        of_embedding = size.filter(lambda rows: math.gcd(rows, world_size) == 1) if uneven else size
        others = (draw(size) for _ in range(draw(st.integers(*depths)) - 1))
        model = network(draw(of_embedding), draw(of_embedding), *others)
        seldom, batch = draw(st.sampled_from((False, True))), draw(st.integers(1, 3))
        steps = draw(st.integers(1 + seldom, 3))
        return FsdpCase(world_size, model, _ADAMW, steps, batch, seldom_gathered=seldom, seed=seed)

    return called(training, "sharded_trainings", (wide, uneven, depths))


def with_model(drawn: Drawer, **options: Any) -> Drawer:
    """Return a strategy of the same trainings, but for some attributes of the model."""
    return mapped(drawn, lambda case: replace(case, model=replace(case.model, **options)), options)


def _shared_evenly(world_size: int, least: int) -> st.SearchStrategy[int]:
    """Multiples of the world size from `least` on: three of them, or two where it is large."""
    first = math.ceil(least / world_size)
    return st.integers(first, first + (2 if world_size == 1 else 1)).map(lambda parts: parts * world_size)


@st.composite
def weighed_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Ten layers, so wide, and given so few tokens, that every whole weight is larger than anything else.

    On one rank, nothing need be gathered: there are two at least, where there may be.
    """
    drawn = sharded_trainings(wide=True, depths=(10, 10))(bounds)
    case: FsdpCase = draw(drawn.filter(lambda one: one.world_size > 1 or bounds.world_size == 1))
    return replace(case, batch=1, weighed=True)


@st.composite
def biased_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Linear layers have a bias."""
    case: FsdpCase = draw(sharded_trainings()(bounds))
    layers = (replace(layer, bias=True) if isinstance(layer, Linear) else layer for layer in case.model.layers)
    return replace(case, model=replace(case.model, layers=tuple(layers)))


@st.composite
def tied_trainings(draw: Draw, bounds: Bounds) -> FsdpCase:
    """Linear layers of one width but for the last, whose weight is the embedding's."""
    case: FsdpCase = draw(sharded_trainings()(bounds))
    (tokens, width), depth = case.matrices[0], len(case.matrices)
    return replace(case, model=network(tokens, *[width] * (depth - 1), tokens, tied=(0, depth)))


@st.composite
def trainings_with_a_layer_used_twice(draw: Draw, bounds: Bounds) -> FsdpCase:
    """The first linear layer, which computes twice, keeps the width."""
    case: FsdpCase = draw(sharded_trainings()(bounds))
    embedding, norm, _, *others = case.model.layers
    kept = Linear(case.matrices[0][1], bias=False)
    return replace(case, model=replace(case.model, layers=(embedding, norm, kept, Again(FIRST_LINEAR), *others)))
