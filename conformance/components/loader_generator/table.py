"""The checks, in the order in which they run."""

from conformance.checks.check import Check, described
from conformance.checks.generators import global_generators_stay
from conformance.checks.words import TWO_MACHINES
from conformance.components.loader_generator import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_SAME = ("reproducible",)
CHECKS = (
    described(checks.reproducible, loop.generators),
    described(checks.differs_by_rank, loop.generators, points=2, requires=_SAME),
    described(checks.seed_decides, loop.generators, requires=_SAME),
    Check(
        "global_generators_stay",
        "Making the generator leaves the global generators as they were: torch's, Python's and NumPy's.",
        loop.generators,
        global_generators_stay,
        "robustness",
        requires=_SAME,
        advice="Seed a `torch.Generator()` of its own, not with `torch.manual_seed`, and nothing besides.",
    ),
    described(checks.streams_are_apart, loop.generators, "extended", requires=("differs_by_rank",)),
    Check(
        "on_two_machines",
        "On two machines, every rank has a stream of its own.",
        having(loop.generators, two_machines=True),
        checks.differs_by_rank,
        "robustness",
        level="extended",
        requires=("differs_by_rank",),
        advice=TWO_MACHINES,
    ),
    described(checks.generators_are_apart, loop.generators, "extended", requires=_SAME),
)
