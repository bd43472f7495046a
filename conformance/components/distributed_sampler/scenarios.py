"""Strategies for distributed samplers: data sets, on two ranks first, then on more, and on one."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.components.distributed_sampler.case import SamplerCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, Drawer, called, several, worlds

MANY_EPOCHS = (0, 1, 2, 3, 10, 100)


def samplings(*, shuffle: bool, drop_last: bool = False, epochs: tuple[int | None, ...] = (0, 1, 0)) -> Drawer:
    """Return a strategy of data sets, most of which do not divide evenly, but do with some samples used twice."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed = draw(worlds(bounds)), draw(SEEDS)
        length = draw(st.integers(math.ceil(world_size / 2), 13))
        return SamplerCase(world_size, seed, length, shuffle, drop_last, epochs)

    return called(sharing, "samplings", (shuffle, drop_last, epochs))


def long_samplings(*, shuffle: bool = True, epochs: tuple[int | None, ...] = (0, 1, 0)) -> Drawer:
    """Return a strategy of data sets so long that no rank's share is sorted, or the same in two shuffles, by chance."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed, share = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(15, 20))
        length = world_size * share + draw(st.integers(0, world_size - 1))
        return SamplerCase(world_size, seed, length, shuffle, epochs=epochs)

    return called(sharing, "long_samplings", (shuffle, epochs))


def indivisible_samplings(*, drop_last: bool = False) -> Drawer:
    """Return a strategy of long data sets that several ranks shuffle in many epochs, and cannot share out evenly."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed, share = draw(several(bounds)), draw(SEEDS), draw(st.integers(20, 30))
        length = world_size * share + draw(st.integers(1, world_size - 1))
        return SamplerCase(world_size, seed, length, True, drop_last, MANY_EPOCHS)

    return called(sharing, "indivisible_samplings", drop_last)


@st.composite
def tiny_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """One sample, and three ranks or more where there may be: adding the data set once does not fill all shares."""
    world_size = draw(st.integers(min(3, bounds.world_size), bounds.world_size))
    return SamplerCase(world_size, draw(SEEDS), length=1, shuffle=False)


@st.composite
def large_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """More samples than 16 bits count, on two ranks or more, that shuffle them once."""
    world_size, more = draw(several(bounds)), draw(st.integers(1, 1000))
    return SamplerCase(world_size, draw(SEEDS), 2**16 + more, shuffle=True, epochs=(0,))


@st.composite
def dropping_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """The last samples are dropped; in half of the cases there are some."""
    case: SamplerCase = draw(samplings(shuffle=False, drop_last=True)(bounds))
    if draw(st.booleans()):
        return case
    world_size, share = draw(several(bounds)), draw(st.integers(1, 4))
    return replace(case, world_size=world_size, length=world_size * share + draw(st.integers(1, world_size - 1)))


@st.composite
def samplings_for_others(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Every rank also asks for the shares of another number of replicas than there are ranks."""
    case: SamplerCase = draw(samplings(shuffle=True)(bounds))
    return replace(case, replicas=draw(st.sampled_from([n for n in range(1, 6) if n != case.world_size])))
