"""The component `loader_generator`: what is drawn, its checks in the order in which they run, and its record."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.steps import global_generators_stay
from conformance.checks.words import TWO_MACHINES
from conformance.components.component import Component
from conformance.components.loader_generator import assertions
from conformance.components.loader_generator.case import GeneratorCase
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, worlds
from conformance.submissions.contract import Function, part
from conformance.workload.numbers import seeds


@st.composite
def generators(draw: Draw, bounds: Bounds) -> GeneratorCase:
    """One seed for all ranks."""
    return GeneratorCase(draw(worlds(bounds)), draw(SEEDS))


_check = partial(Check, scenarios=generators, requires=("reproducible",))
# fmt: off
_CHECKS = (
    _check("reproducible",
        "The same seed gives the same stream on a rank, in another run too, whatever else has drawn random numbers.",
        assertion=assertions.reproducible, theme="numbers", requires=()),
    _check("ranks_draw_apart", "Every rank has a stream of its own, so that shuffling and augmentations differ.",
        assertion=assertions.ranks_draw_apart, theme="numbers"),
    _check("seed_decides", "Another seed gives another stream.", assertion=assertions.seed_decides, theme="numbers"),
    _check("global_generators_stay",
        "Making the generator leaves the global generators as they were: torch's, Python's and NumPy's.",
        assertion=global_generators_stay, theme="robustness",
        advice="Seed a `torch.Generator()` of its own, not with `torch.manual_seed`, and nothing besides."),
    _check("streams_are_apart",
        "No rank draws the numbers of another rank some draws later, and no generator of a rank those of another one.",
        assertion=assertions.streams_are_apart, theme="numbers", level="extended", requires=("ranks_draw_apart",)),
    _check("on_two_machines", "On two machines, every rank has a stream of its own.",
        scenarios=having(generators, two_machines=True), assertion=assertions.ranks_draw_apart, theme="robustness",
        level="extended", requires=("ranks_draw_apart",), advice=TWO_MACHINES),
)
_ASPECTS = (
    Aspect("a stream for each rank", 2, ("reproducible", "ranks_draw_apart"), essential=True),
    Aspect("seeds", 1, ("seed_decides", "global_generators_stay")),
)
# fmt: on
LOADER_GENERATOR = Component(
    contract=part("loader_generator", Function("get_ddp_generator", ("seed",))),
    about="Gives each rank a generator of its own for its data loader.",
    exercise="conformance.components.loader_generator.on_ranks:draw",
    numbers=for_each_rank(seeds),
    simplest=GeneratorCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
