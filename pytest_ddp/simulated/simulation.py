"""Runs a function on simulated ranks once."""

from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddp.simulated.network import Watch
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Schedule
from pytest_ddp.simulated.world import SimulatedWorld, Simulation, Switch


def simulate(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    schedule: Schedule | None = None,
    reduction: Reduction = "rank_order",
    faults: Sequence[Any] = (),
    watch: Watch | None = None,
    on_switch: Switch | None = None,
) -> Simulation:
    """Call a function on each of `world_size` simulated ranks, with a default group of the backend "sim".

    The function and all that it calls use torch.distributed as ever. One rank runs at a time, so a run is
    deterministic: the same schedule gives the same bits.

    Args:
        function: called on each rank.
        world_size: how many ranks.
        *arguments: its arguments; all ranks get the same objects.
        schedule: decides which rank runs next and which results land early; by default, a rank runs until it waits.
        reduction: the order in which reductions add: "rank_order", "ring" or "tree".
        faults: plain data of `pytest_ddp.planning.faults`, or functions that are called with each `Launch`, in the
            thread of its rank, and may raise.
        watch: called with each event as it happens, and with its launch if it has one.
        on_switch: called when another rank goes on; see `SimulatedWorld`.

    Returns:
        What came of it. Problems and exceptions are values of it; nothing is raised.
    """
    with SimulatedWorld(world_size, reduction, on_switch) as world:
        return world.run(lambda _: function(*arguments), schedule, faults, watch=watch)
