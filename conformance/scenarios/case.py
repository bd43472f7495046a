"""What every case has, which is what a component of the training loop is asked once. Nothing here imports torch."""

from dataclasses import dataclass, field

from conformance.scenarios.compact_repr import Brief


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """What every case has.

    Attributes:
        world_size: ranks.
        seed: selects the numbers.
        gated: whether results of collectives arrive only when somebody waits for them, and are NaN until then.
        two_machines: whether ranks seem to be on two machines, where `LOCAL_RANK` is not the rank.
    """

    world_size: int = 1
    seed: int = 0
    gated: bool = field(default=False, kw_only=True)
    two_machines: bool = field(default=False, kw_only=True)

    @property
    def worlds(self) -> tuple[int, ...]:
        """The worlds that work on the case, one after the other."""
        return (self.world_size,)
