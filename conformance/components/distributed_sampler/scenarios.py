"""Strategies for distributed samplers: data sets, on two ranks first, then on more, and on one."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.components.distributed_sampler.case import SamplerCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, several, worlds

MANY_EPOCHS = (0, 1, 2, 3, 10, 100)


@st.composite
def shuffled(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Data sets, most of which do not divide evenly, but do with some samples used twice."""
    world_size, seed = draw(worlds(bounds)), draw(SEEDS)
    return SamplerCase(world_size, seed, draw(st.integers(math.ceil(world_size / 2), 13)))


@st.composite
def long(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Data sets so long that no rank's share is sorted, or the same in two shuffles, by chance."""
    world_size, seed, share = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(15, 20))
    return SamplerCase(world_size, seed, world_size * share + draw(st.integers(0, world_size - 1)))


@st.composite
def indivisible(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Long data sets that several ranks shuffle in many epochs, and cannot share out evenly."""
    world_size, seed, share = draw(several(bounds)), draw(SEEDS), draw(st.integers(20, 30))
    length = world_size * share + draw(st.integers(1, world_size - 1))
    return SamplerCase(world_size, seed, length, epochs=MANY_EPOCHS)


@st.composite
def tiny(draw: Draw, bounds: Bounds) -> SamplerCase:
    """One sample, and three ranks or more where there may be: adding the data set once does not fill all shares."""
    world_size = draw(st.integers(min(3, bounds.world_size), bounds.world_size))
    return SamplerCase(world_size, draw(SEEDS), length=1, shuffle=False)


@st.composite
def large(draw: Draw, bounds: Bounds) -> SamplerCase:
    """More samples than 16 bits count, on two ranks or more, that shuffle them once."""
    world_size, more = draw(several(bounds)), draw(st.integers(1, 1000))
    return SamplerCase(world_size, draw(SEEDS), 2**16 + more, epochs=(0,))


unshuffled = having(shuffled, shuffle=False)


@st.composite
def dropping(draw: Draw, bounds: Bounds) -> SamplerCase:
    """The last samples are dropped; in half of the cases there are some."""
    case: SamplerCase = replace(draw(unshuffled(bounds)), drop_last=True)
    if draw(st.booleans()):
        return case
    world_size, share = draw(several(bounds)), draw(st.integers(1, 4))
    return replace(case, world_size=world_size, length=world_size * share + draw(st.integers(1, world_size - 1)))


@st.composite
def shared_out_for_others(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Every rank also asks for the shares of another number of replicas than there are ranks."""
    case: SamplerCase = draw(shuffled(bounds))
    return replace(case, replicas=draw(st.sampled_from([n for n in range(1, 6) if n != case.world_size])))
