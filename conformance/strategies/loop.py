"""Strategies for the parts of the training loop: cases, on two ranks first, then on more, and on one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from hypothesis import strategies as st

from conformance.components.checkpoint.case import CheckpointCase
from conformance.components.distributed_sampler.case import SamplerCase
from conformance.components.evaluation.case import EvaluationCase
from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.components.loader_generator.case import GeneratorCase
from conformance.components.overhead_model.case import OverheadCase
from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.scenarios.drawn import Case
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, worlds

C = TypeVar("C", bound=Case)


MANY_EPOCHS = (0, 1, 2, 3, 10, 100)


def _several(bounds: Bounds) -> st.SearchStrategy[int]:
    return st.integers(2, bounds.world_size)


def scaled_or_not(
    cases: Callable[[Bounds], st.SearchStrategy[AccumulationCase]],
) -> Callable[[Bounds], st.SearchStrategy[AccumulationCase]]:
    """Return a strategy of the same cases, with a gradient scaler or without."""
    return lambda bounds: st.builds(lambda case, scaled: replace(case, scaled=scaled), cases(bounds), st.booleans())


def gated(cases: Callable[[Bounds], st.SearchStrategy[C]]) -> Callable[[Bounds], st.SearchStrategy[C]]:
    """Return a strategy of the same cases, in which results of collectives arrive only when they are waited for."""
    return lambda bounds: cases(bounds).map(lambda case: replace(case, gated=True))


@st.composite
def overheads(draw: Draw, _: Bounds) -> OverheadCase:
    """One prediction; it needs no other rank."""
    return OverheadCase(seed=draw(SEEDS))


def samplings(
    *, shuffle: bool, drop_last: bool = False, epochs: tuple[int | None, ...] = (0, 1, 0)
) -> Callable[[Bounds], st.SearchStrategy[SamplerCase]]:
    """Return a strategy of data sets, most of which do not divide evenly, but do with some samples used twice."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed = draw(worlds(bounds)), draw(SEEDS)
        length = draw(st.integers(math.ceil(world_size / 2), 13))
        return SamplerCase(world_size, seed, length, shuffle, drop_last, epochs)

    return sharing


@st.composite
def tiny_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """One sample, and three ranks or more where there may be: adding the data set once does not fill all shares."""
    world_size = draw(st.integers(min(3, bounds.world_size), bounds.world_size))
    return SamplerCase(world_size, draw(SEEDS), length=1, shuffle=False)


@st.composite
def dropping_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """The last samples are dropped; in half of the cases there are some."""
    case: SamplerCase = draw(samplings(shuffle=False, drop_last=True)(bounds))
    if draw(st.booleans()):
        return case
    world_size, share = draw(_several(bounds)), draw(st.integers(1, 4))
    return replace(case, world_size=world_size, length=world_size * share + draw(st.integers(1, world_size - 1)))


def long_samplings(
    *, shuffle: bool, epochs: tuple[int | None, ...] = (0, 1, 0)
) -> Callable[[Bounds], st.SearchStrategy[SamplerCase]]:
    """Return a strategy of data sets so long that of no rank's share two shuffles are alike, or one is sorted."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed, share = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(15, 20))
        length = world_size * share + draw(st.integers(0, world_size - 1))
        return SamplerCase(world_size, seed, length, shuffle, epochs=epochs)

    return sharing


def indivisible_samplings(*, drop_last: bool = False) -> Callable[[Bounds], st.SearchStrategy[SamplerCase]]:
    """Return a strategy of long data sets that several ranks shuffle in many epochs, and cannot share out evenly."""

    @st.composite
    def sharing(draw: Draw, bounds: Bounds) -> SamplerCase:
        world_size, seed, share = draw(_several(bounds)), draw(SEEDS), draw(st.integers(20, 30))
        length = world_size * share + draw(st.integers(1, world_size - 1))
        return SamplerCase(world_size, seed, length, True, drop_last, MANY_EPOCHS)

    return sharing


@st.composite
def large_samplings(draw: Draw, bounds: Bounds) -> SamplerCase:
    """More samples than 16 bits count, on two ranks or more, that shuffle them once."""
    world_size, more = draw(_several(bounds)), draw(st.integers(1, 1000))
    return SamplerCase(world_size, draw(SEEDS), 2**16 + more, shuffle=True, epochs=(0,))


@st.composite
def samplings_for_others(draw: Draw, bounds: Bounds) -> SamplerCase:
    """Every rank also asks for the shares of another number of replicas than there are ranks."""
    case: SamplerCase = draw(samplings(shuffle=True)(bounds))
    return replace(case, replicas=draw(st.sampled_from([n for n in range(1, 6) if n != case.world_size])))


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
    world_size, seed = draw(_several(bounds)), draw(SEEDS)
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    last = draw(st.sampled_from(((), (2,))))
    return EvaluationCase(world_size, seed, ((3, 3, 3, 1), *(draw(sizes) for _ in range(world_size - 2)), last))


def evaluated_again(
    cases: Callable[[Bounds], st.SearchStrategy[EvaluationCase]],
) -> Callable[[Bounds], st.SearchStrategy[EvaluationCase]]:
    """Return a strategy of the same cases, with a second model, in evaluation mode, and with gradients turned off."""
    return lambda bounds: cases(bounds).map(lambda case: replace(case, again=True))


@st.composite
def half_evaluations(draw: Draw, bounds: Bounds) -> EvaluationCase:
    """A model in bfloat16, and on each rank one batch whose number of samples bfloat16 does not hold exactly."""
    world_size, seed = draw(worlds(bounds)), draw(SEEDS)
    size = 2 * draw(st.integers(128, 160)) + 1
    return EvaluationCase(world_size, seed, ((size,),) * world_size, half=True)


@st.composite
def generators(draw: Draw, bounds: Bounds) -> GeneratorCase:
    """One seed for all ranks."""
    return GeneratorCase(draw(worlds(bounds)), draw(SEEDS))


def accumulations(
    *, steps: int = 1, scaled: bool = False, at: Literal["backward", "forward", "finish"] = "backward"
) -> Callable[[Bounds], st.SearchStrategy[AccumulationCase]]:
    """Return a strategy of steps over two micro-batches, more, or one."""

    @st.composite
    def accumulating(draw: Draw, bounds: Bounds) -> AccumulationCase:
        micro_batches, samples = draw(st.sampled_from((2, 3, 4, 1))), draw(st.integers(1, 3))
        return AccumulationCase(draw(worlds(bounds)), draw(SEEDS), steps, micro_batches, samples, scaled, at=at)

    return accumulating


@st.composite
def shrinking_accumulations(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """Two or three steps, the last of which has one micro-batch fewer."""
    case: AccumulationCase = draw(accumulations()(bounds))
    micro_batches = draw(st.integers(2, 4))
    return replace(case, steps=draw(st.integers(2, 3)), micro_batches=micro_batches, shrinking=True)


@st.composite
def overflowing(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """One rank's gradients are infinite in the first step."""
    case: AccumulationCase = draw(accumulations(steps=2, scaled=True)(bounds))
    return replace(case, overflow=draw(st.integers(0, case.world_size - 1)))


def norms(*, uneven: bool = False, steps: int = 1) -> Callable[[Bounds], st.SearchStrategy[SyncBatchNormCase]]:
    """Return a strategy of batch norms whose ranks have batches of one size, or not."""

    @st.composite
    def normalising(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
        world_size, seed, dimensions = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(2, 4))
        size = draw(st.integers(2, 4))
        sizes = [size, *(size + uneven * draw(st.integers(1, 3)) for _ in range(world_size - 1))]
        eps, momentum = draw(st.sampled_from((1e-5, 1e-3, 0.1))), draw(st.sampled_from((0.1, 0.3, 0.01, 0.0)))
        return SyncBatchNormCase(world_size, seed, tuple(sizes), dimensions, steps, eps, momentum)

    return normalising


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
    world_size = draw(_several(bounds))
    return replace(case, world_size=world_size, sizes=(1,) * world_size)


@st.composite
def untracked_norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """Without running statistics; with weight and bias or without."""
    case: SyncBatchNormCase = draw(norms(uneven=True)(bounds))
    return replace(case, tracked=False, affine=draw(st.sampled_from((True, False))))


def checkpoints(**unusual: bool) -> Callable[[Bounds], st.SearchStrategy[CheckpointCase]]:
    """Return a strategy of trainings, with a scaler or without, that go on in a world of the same size.

    What else is unusual is given by the names of `CheckpointCase`.
    """

    @st.composite
    def resuming(draw: Draw, bounds: Bounds) -> CheckpointCase:
        world_size, seed, steps = draw(worlds(bounds)), draw(SEEDS), st.integers(1, 3)
        scaled = draw(st.sampled_from((True, False)))
        return CheckpointCase(world_size, seed, world_size, draw(steps), draw(steps), scaled, **unusual)

    return resuming


@st.composite
def checkpoints_of_other_worlds(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """Another number of ranks goes on."""
    case: CheckpointCase = draw(checkpoints()(bounds))
    others = [size for size in range(1, bounds.world_size + 1) if size != case.world_size]
    return replace(case, load_world_size=draw(st.sampled_from(others)))


@st.composite
def checkpoints_without_scaler(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """The training that is saved has a gradient scaler, and the one that goes on has none."""
    case: CheckpointCase = draw(checkpoints()(bounds))
    return replace(case, scaled=True, unscaled=True)


@st.composite
def failing_checkpoints(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """A second save fails half way, on one rank, where no other can be left waiting."""
    case: CheckpointCase = draw(checkpoints()(bounds))
    return replace(case, world_size=1, load_world_size=1, failing=True)
