"""Strategies for checkpoints: trainings that are saved, on two ranks first, then on more, and on one."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance.components.checkpoint.case import CheckpointCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, worlds


def checkpoints(**unusual: bool) -> Drawer:
    """Return a strategy of trainings, with a scaler or without, that go on in a world of the same size.

    What else is unusual is given by the names of `CheckpointCase`.
    """

    @st.composite
    def resuming(draw: Draw, bounds: Bounds) -> CheckpointCase:
        world_size, seed, steps = draw(worlds(bounds)), draw(SEEDS), st.integers(1, 3)
        scaled = draw(st.sampled_from((True, False)))
        return CheckpointCase(world_size, seed, world_size, draw(steps), draw(steps), scaled, **unusual)

    return called(resuming, "checkpoints", unusual)


@st.composite
def checkpoints_of_other_worlds(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """Another number of ranks goes on."""
    case: CheckpointCase = draw(checkpoints()(bounds))
    others = [size for size in range(1, bounds.world_size + 1) if size != case.world_size]
    return replace(case, load_world_size=draw(st.sampled_from(others)))
