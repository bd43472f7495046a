"""What every case has, which is what a component of the training loop is asked. Nothing here imports torch."""

from dataclasses import dataclass, field

from conformance.scenarios.drawn import Drawn


@dataclass(frozen=True, repr=False)
class Case(Drawn):
    """What every case has; `Drawn` describes the attributes."""

    world_size: int = 1
    seed: int = 0
    gated: bool = field(default=False, kw_only=True)
    two_machines: bool = field(default=False, kw_only=True)
