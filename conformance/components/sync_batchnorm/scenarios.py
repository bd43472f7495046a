"""Strategies for batch norms: their options and batches, on two ranks first, then on more, and on one."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, several, worlds


def norms(*, uneven: bool = False, steps: int = 1) -> Drawer:
    """Return a strategy of batch norms whose ranks have batches of one size, or not."""

    @st.composite
    def normalising(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
        world_size, seed, dimensions = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(2, 4))
        size = draw(st.integers(2, 4))
        sizes = [size, *(size + uneven * draw(st.integers(1, 3)) for _ in range(world_size - 1))]
        eps, momentum = draw(st.sampled_from((1e-5, 1e-3, 0.1))), draw(st.sampled_from((0.1, 0.3, 0.01, 0.0)))
        return SyncBatchNormCase(world_size, seed, tuple(sizes), dimensions, steps, eps, momentum)

    return called(normalising, "norms", (uneven, steps))


@st.composite
def far_norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """In float32, far from zero, and with so many samples that their spread is known; of sequences."""
    case: SyncBatchNormCase = draw(norms()(bounds))
    sizes = tuple(draw(st.integers(3, 4)) for _ in case.sizes)
    return replace(case, sizes=sizes, dimensions=3, far=True)


@st.composite
def norms_of_an_empty_rank(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """One rank's batch is empty."""
    case: SyncBatchNormCase = draw(norms()(bounds))
    empty = draw(st.integers(0, case.world_size - 1)) if case.world_size > 1 else -1
    return replace(case, sizes=tuple(0 if rank == empty else size for rank, size in enumerate(case.sizes)))


@st.composite
def norms_of_one_sample(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """One sample on each of several ranks, where large inputs leave room for no more."""
    case: SyncBatchNormCase = draw(norms()(bounds))
    world_size = draw(several(bounds))
    return replace(case, world_size=world_size, sizes=(1,) * world_size)


@st.composite
def untracked_norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """Without running statistics; with weight and bias or without."""
    case: SyncBatchNormCase = draw(norms(uneven=True)(bounds))
    return replace(case, tracked=False, affine=draw(st.sampled_from((True, False))))
