"""Strategies for the parts of the training loop: cases, on two ranks first, then on more, and on one."""

from hypothesis import strategies as st

from conformance.cases import OverheadCase
from conformance.strategies.parts import Bounds, Draw

_SEEDS = st.integers(0, 99)


def _worlds(bounds: Bounds) -> st.SearchStrategy[int]:
    return st.sampled_from((*range(2, bounds.world_size + 1), 1))


@st.composite
def overheads(draw: Draw, _: Bounds) -> OverheadCase:
    """One prediction; it needs no other rank."""
    return OverheadCase(seed=draw(_SEEDS))
