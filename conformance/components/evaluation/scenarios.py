"""Strategies for evaluation: batches of labelled samples, on two ranks first, then on more, and on one."""

from hypothesis import strategies as st

from conformance.components.evaluation.case import EvaluationCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, several, worlds


@st.composite
def even_evaluations(draw: Draw, bounds: Bounds) -> EvaluationCase:
    """As many batches on each rank, all of one size."""
    world_size, seed = draw(worlds(bounds)), draw(SEEDS)
    batches, size = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    return EvaluationCase(world_size, seed, ((size,) * batches,) * world_size)


@st.composite
def uneven_evaluations(draw: Draw, bounds: Bounds) -> EvaluationCase:
    """As many batches on each rank; the last one is smaller, and smaller still on the last rank."""
    world_size, seed = draw(worlds(bounds)), draw(SEEDS)
    batches, size = draw(st.integers(2, 3)), draw(st.integers(4, 6))
    rests = [*(draw(st.integers(2, 3)) for _ in range(world_size - 1)), 1]
    return EvaluationCase(world_size, seed, tuple((*(size,) * (batches - 1), rest) for rest in rests))


@st.composite
def ragged_evaluations(draw: Draw, bounds: Bounds) -> EvaluationCase:
    """Fewer batches on some ranks, even none on the last."""
    world_size, seed = draw(several(bounds)), draw(SEEDS)
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    last = draw(st.sampled_from(((), (2,))))
    return EvaluationCase(world_size, seed, ((3, 3, 3, 1), *(draw(sizes) for _ in range(world_size - 2)), last))


@st.composite
def half_evaluations(draw: Draw, bounds: Bounds) -> EvaluationCase:
    """A model in bfloat16, and on each rank one batch whose number of samples bfloat16 does not hold exactly."""
    world_size, seed = draw(worlds(bounds)), draw(SEEDS)
    size = 2 * draw(st.integers(128, 160)) + 1
    return EvaluationCase(world_size, seed, ((size,),) * world_size, half=True)
