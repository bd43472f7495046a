"""Strategies for the parts of the training loop: cases, on two ranks first, then on more, and on one."""

from collections.abc import Callable

from hypothesis import strategies as st

from conformance.cases import OverheadCase, SamplerCase
from conformance.strategies.parts import Bounds, Draw

_SEEDS = st.integers(0, 99)


def _worlds(bounds: Bounds) -> st.SearchStrategy[int]:
    return st.sampled_from((*range(2, bounds.world_size + 1), 1))


@st.composite
def overheads(draw: Draw, _: Bounds) -> OverheadCase:
    """One prediction; it needs no other rank."""
    return OverheadCase(seed=draw(_SEEDS))


def samplings(
    *, shuffle: bool, drop_last: bool = False, lengths: tuple[int, int] = (1, 13)
) -> Callable[[Bounds], st.SearchStrategy[SamplerCase]]:
    """Return a strategy of data sets, most of which do not divide evenly, and some of which have too few samples."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        return SamplerCase(draw(_worlds(bounds)), draw(_SEEDS), draw(st.integers(*lengths)), shuffle, drop_last)

    return sharing


def long_samplings(*, shuffle: bool) -> Callable[[Bounds], st.SearchStrategy[SamplerCase]]:
    """Return a strategy of data sets so long that no two shuffles of them are alike."""
    return samplings(shuffle=shuffle, lengths=(40, 60))
