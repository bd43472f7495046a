"""Runs a function on simulated ranks: threads of this process, with a world of torch.distributed each."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from pytest_ddp.simulated.network import Event, Network, Watch
from pytest_ddp.simulated.problems import Problem, ProblemFound, RankStopped
from pytest_ddp.simulated.process_group import SimulatedGroup
from pytest_ddp.simulated.process_state import ProcessState
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Recorded, Schedule
from pytest_ddp.simulated.scheduler import Scheduler
from pytest_ddp.torch_internals import autograd_in_calling_thread, forget_groups, world_of_each_thread

BACKEND = "sim"
_TIMEOUT = timedelta(minutes=30)  # torch asks for one; simulated time stands still


@dataclass
class Simulation:
    """What came of a simulated run.

    Attributes:
        results: what each rank returned; None where it did not.
        errors: the exceptions of ranks that failed, by rank.
        problem: the first problem of the communication; None if there is none.
        choices: the decisions of the schedule, in order; `Recorded(choices)` replays the run.
        events: what happened, in order.
    """

    results: list[Any]
    errors: dict[int, BaseException] = field(default_factory=dict)
    problem: Problem | None = None
    choices: tuple[int, ...] = ()
    events: list[Event] = field(default_factory=list)

    def raise_problem(self) -> None:
        """Raise ProblemFound if there is a problem, else the exception of the first rank that failed, if any."""
        if self.problem is not None:
            raise ProblemFound(self.problem, self.choices)
        for _, error in sorted(self.errors.items()):
            raise error


def simulate(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    schedule: Schedule | None = None,
    reduction: Reduction = "rank_order",
    faults: Sequence[Any] = (),
    watch: Watch | None = None,
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
        faults: called with each `Launch`, in the thread of its rank; a fault may raise.
        watch: called with each event as it happens, and with its launch if it has one.

    Returns:
        What came of it. Problems and exceptions are values of it; nothing is raised.
    """
    scheduler = Scheduler(Recorded() if schedule is None else schedule)
    network = Network(scheduler, reduction, faults, watch)
    simulation = Simulation([None] * world_size)
    scheduler.stuck = network.stuck
    with ExitStack() as process:
        state = process.enter_context(ProcessState.kept(world_size))
        process.enter_context(world_of_each_thread())
        process.enter_context(network.futures_patched())
        scheduler.switched = state.switch
        store = dist.HashStore()
        run = partial(_run_rank, simulation, network, store, partial(function, *arguments))
        scheduler.run([partial(run, rank) for rank in range(world_size)])
    network.check_the_end()
    simulation.problem = scheduler.problem
    simulation.choices = tuple(scheduler.choices)
    simulation.events = network.events
    return simulation


def _run_rank(
    simulation: Simulation,
    network: Network,
    store: dist.Store,
    function: Callable[[], Any],
    rank: int,
) -> None:
    """Run a rank in its thread."""
    world_size = len(simulation.results)
    try:
        with autograd_in_calling_thread():
            dist.init_process_group(
                BACKEND, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT, pg_options=network
            )
            simulation.results[rank] = function()
    except RankStopped:
        pass
    except BaseException as error:  # noqa: BLE001  it is the rank's result
        simulation.errors[rank] = error
        network.failed(rank)
    finally:
        forget_groups()


def _create_group(options: Any, network: Network | None) -> SimulatedGroup:
    """Make one rank's side of a group; `new_group` does not say of which network."""
    if network is None and dist.is_initialized():
        network = getattr(dist.group.WORLD, "network", None)
    if network is None:
        raise RuntimeError("a process group of the backend 'sim' exists only inside `simulate`")
    return SimulatedGroup(network, options.group_rank, options.group_size)


dist.Backend.register_backend(BACKEND, _create_group, extended_api=True, devices=["cpu"])
