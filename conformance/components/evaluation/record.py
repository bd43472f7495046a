"""The component `evaluation`: what is drawn, its checks in the order in which they run, and its record."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.steps import global_generators_stay
from conformance.components.component import Component
from conformance.components.evaluation import assertions
from conformance.components.evaluation.case import EvaluationCase, numbers
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, several, worlds
from conformance.submissions.contract import Function, part


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


_TWICE = having(even_evaluations, again=True)
_check = partial(Check, requires=("global_accuracy",))
_counts = partial(_check, assertion=assertions.global_accuracy, theme="numbers")
_use = partial(_check, level="extended", theme="use of the model")
# fmt: off
_CHECKS = (
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(even_evaluations, gated=True), assertions.results_are_waited_for, "waiting"),
    _counts("global_accuracy", "Every rank gets the share of right samples among those of all ranks.",
        even_evaluations, requires=("results_are_waited_for",)),
    _counts("weighted_by_samples",
        "Every sample counts the same, also where batches and ranks have different numbers of samples.",
        uneven_evaluations, advice="All-reduce the sum of right samples and the sum of samples; divide then."),
    _counts("counts_anew", "A second evaluation, as after the next epoch, counts its own samples alone.", _TWICE,
        assertion=assertions.counts_anew),
    _counts("ranks_with_fewer_batches", "Ranks may have fewer batches than others, even none.",
        ragged_evaluations, level="extended", advice="Reduce once, after all batches; a rank without any adds zero."),
    _use("evaluates",
        "The model is called in evaluation mode, so that dropout is off and batch statistics stay, without gradients.",
        even_evaluations, assertions.evaluates),
    _use("modes_stay",
        "Every module is left in its mode, also a frozen norm that is in evaluation mode while the model trains.",
        _TWICE, assertions.modes_stay),
    _use("arguments_stay",
        "Parameters, their gradients, and whether gradients are turned on or off are left as they are.", _TWICE,
        assertions.arguments_stay),
    _use("global_generators_stay",
        "Evaluation leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        even_evaluations, global_generators_stay, theme="robustness",
        advice="Seed nothing in evaluation: training would draw the same dropout masks and augmentations after each."),
    _counts("counts_exactly",
        "The accuracy of a model in bfloat16 is as exact as any other's, whatever the number of samples.",
        half_evaluations, level="extended", theme="precision",
        advice="The model is in bfloat16, which has no odd number above 256: keep counts in int64 or float64."),
)
_ASPECTS = (
    Aspect("accuracy over all ranks", 3, ("results_are_waited_for", "global_accuracy"), essential=True),
    Aspect("weights and counts", 2, ("weighted_by_samples", "counts_anew")),
)
# fmt: on
EVALUATION = Component(
    contract=part("evaluation", Function("evaluate", ("model", "batches"))),
    about="Computes the accuracy over the samples of all ranks, on every rank.",
    exercise="conformance.components.evaluation.on_ranks:evaluate",
    numbers=for_each_rank(numbers),
    simplest=EvaluationCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
