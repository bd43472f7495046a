"""The component `loader_generator`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.loader_generator.case import GeneratorCase
from conformance.components.loader_generator.numbers import draw
from conformance.components.loader_generator.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

LOADER_GENERATOR = Component(
    contract=part(
        "loader_generator",
        Function("get_ddp_generator", ("seed",)),
    ),
    about="Gives each rank a generator of its own for its data loader.",
    exercise="conformance.components.loader_generator.on_ranks:draw",
    numbers=for_each_rank(draw),
    simplest=GeneratorCase(),
    checks=CHECKS,
    aspects=(
        Aspect("a stream for each rank", 2, ("reproducible", "ranks_draw_apart"), essential=True),
        Aspect("seeds", 1, ("seed_decides", "global_generators_stay")),
    ),
)
