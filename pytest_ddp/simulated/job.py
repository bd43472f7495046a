"""A job of simulated ranks that starts again after a crash, as torchrun and Slurm start jobs again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from pytest_ddp.planning.faults import Fault, Rejoin
from pytest_ddp.simulated.faults.file_faults import FileFaults
from pytest_ddp.simulated.problems import PeerLost, RankKilled
from pytest_ddp.simulated.simulation import simulate
from pytest_ddp.simulated.world import Simulation


@dataclass
class Job:
    """What came of a job.

    Attributes:
        starts: each start of it; the last one lost no rank.
    """

    starts: list[Simulation]

    @property
    def results(self) -> list[Any]:
        """What the ranks of the last start returned."""
        return self.starts[-1].results

    def raise_problem(self) -> None:
        """Raise what went wrong in the last start, if anything did."""
        self.starts[-1].raise_problem()


def run_job(
    function: Callable[..., Any], world_size: int, *arguments: Any, faults: Sequence[Fault] = (), most: int = 5
) -> Job:
    """Call a function on simulated ranks; start it again, on all ranks that are left, while ranks were lost.

    A start that ends with a killed rank, or with one that lost a peer, is followed by another one. A killed rank takes
    part in it only if the plan has a `Rejoin` for it; the other ranks are numbered anew.

    Args:
        function: called on each rank.
        world_size: how many ranks the first start has.
        *arguments: its arguments.
        faults: the plan.
        most: how many starts there are at most.
    """
    starts: list[Simulation] = []
    for number in range(most):
        plan = [fault for fault in faults if fault.start == number]
        starts.append(simulate(function, world_size, *arguments, faults=plan))
        errors = starts[-1].errors
        if not any(isinstance(error, RankKilled | PeerLost) for error in errors.values()):
            break
        rejoining = {fault.rank for fault in plan if isinstance(fault, Rejoin)}
        world_size -= sum(isinstance(error, RankKilled) and rank not in rejoining for rank, error in errors.items())
    return Job(starts)


def operations_of(run: Simulation, rank: int | None = None) -> list[str]:
    """Return where faults may happen in a run: the operations of a rank or of all, in the order of their launch."""
    launched = [event for event in run.events if event.kind == "launched" and rank in {None, event.rank}]
    return list(dict.fromkeys(f"{event.operation}#{event.sequence}" for event in launched))


def file_operations_of(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[tuple[int, str]]:
    """Run a function, and return where ranks change files: pairs of a rank and a place, such as (0, "write#3")."""
    places: list[tuple[int, str]] = []
    files = FileFaults(lambda: dist.get_rank() if dist.is_initialized() else None, lambda *place: places.append(place))

    with files.watched():
        simulate(function, world_size, *arguments).raise_problem()
    return places
