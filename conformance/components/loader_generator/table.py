"""The checks, in the order in which they run."""

from conformance.checks import multi_node
from conformance.checks.check import Check
from conformance.components.loader_generator import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_SAME = ("reproducible",)
CHECKS = (
    Check(checks.reproducible, loop.generators),
    Check(checks.differs_by_rank, loop.generators, points=2, requires=_SAME),
    Check(checks.seed_decides, loop.generators, requires=_SAME),
    Check(checks.leaves_the_global_generator, loop.generators, requires=_SAME),
    Check(checks.streams_are_apart, loop.generators, "extended", requires=("differs_by_rank",)),
    Check(
        multi_node.draws_on_two_machines,
        having(loop.generators, two_machines=True),
        "extended",
        requires=("differs_by_rank",),
    ),
    Check(checks.generators_are_apart, loop.generators, "extended", requires=_SAME),
)
