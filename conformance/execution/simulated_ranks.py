"""Ranks that are threads of one process: faster, and enough to show that a property holds on most scenarios.

A failure that simulated ranks show counts only if real ranks show it too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from conformance.execution.asked import Asked
from conformance.execution.rank_pools import SizedRanks
from conformance.protocol.codec import MalformedError, join, split
from conformance.protocol.explored import Explored
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from pytest_ddp.outcomes.outcome import Outcome, Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import RankGroup

TARGET = "conformance.ranks.simulated:run"
_IN_EVERY_ORDER = "conformance.ranks.simulated:run_in_every_order"
_TRAINS = "conformance.ranks.train:train"
_ALONE = World(1)


def can_be_simulated(component: Asked, drawn: Drawn) -> bool:
    """Whether simulated ranks see of this what real ranks see.

    Not what runs on simulated ranks alone, nor where operations are gated, objects or the memory of a process are
    counted, or ranks read the environment.
    """
    if component.exercise != _TRAINS or not isinstance(drawn, Scenario):
        return False
    return not (drawn.simulated or drawn.gated or drawn.counted or drawn.spoiled or drawn.weighed or drawn.two_machines)


@dataclass
class SimulatedRanks(SizedRanks):
    """Gives worlds of simulated ranks, all of one process; use as a context manager."""

    keeps_connections: ClassVar[bool] = False

    @contextmanager
    def group(self, world: World) -> Iterator[Any]:
        """Give the ranks of a fresh world; raise LaunchError."""
        with super().group(_ALONE) as host:
            yield _SimulatedGroup(host, world.size)

    def explore(self, tasks: Sequence[bytes], *, timeout: float) -> Explored | None:
        """Run a world in every order; return what came of it, None if the ranks did not answer. Raise LaunchError."""
        with super().group(_ALONE) as host:
            (outcome,) = host.run(_IN_EVERY_ORDER, join(tasks), timeout=timeout)
        try:
            return Explored.decode(outcome.body) if isinstance(outcome, Returned) else None
        except MalformedError:
            return None

    def prepare(self, _: World) -> None:
        """Let the process be ready for another world."""
        super().prepare(_ALONE)

    def fresh(self) -> "SimulatedRanks":
        """Return others with a process of their own; close them before these."""
        return SimulatedRanks(self.launcher, self.sandbox, self.counts)


@dataclass
class _SimulatedGroup:
    """A world of simulated ranks, as the executor sees a group of real ones."""

    host: RankGroup
    size: int
    connections: str = ""

    def ask(self, _: str, tasks: Sequence[bytes], *, timeout: float) -> None:
        """Begin a run."""
        self.host.ask(TARGET, join(tasks), timeout=timeout)

    def answers(self) -> list[Outcome]:
        """Return the outcome of each rank; where the run failed, the one outcome of the process."""
        (outcome,) = self.host.answers()
        if not isinstance(outcome, Returned):
            return [outcome]
        try:
            bodies = split(outcome.body)
        except MalformedError:
            bodies = []
        if len(bodies) != self.size:
            bodies = [b""] * self.size  # no answer at all
        return [Returned(rank=rank, seconds=outcome.seconds, body=body) for rank, body in enumerate(bodies)]
