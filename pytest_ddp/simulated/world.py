"""Simulated ranks that live for several runs: threads of this process, with a world of torch.distributed each."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import current_thread
from typing import Any, Self

import torch.distributed as dist

from pytest_ddp.simulated.faults.injection import injection
from pytest_ddp.simulated.guard import BufferGuard
from pytest_ddp.simulated.network import Event, Network, Watch
from pytest_ddp.simulated.problems import Problem, ProblemFound, RankStopped
from pytest_ddp.simulated.process_group import SimulatedGroup
from pytest_ddp.simulated.process_state import ProcessState
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Recorded, Schedule
from pytest_ddp.simulated.scheduler import Rank, Scheduler
from pytest_ddp.simulated.store import SimulatedStore
from pytest_ddp.torch_internals import (
    autograd_in_calling_thread,
    default_group,
    dispatch_flags_kept,
    engine,
    forget_groups,
    keep_device_guard,
    prefix_stores,
    register_python_backend,
    set_engine,
    share_ranks,
    world_of_each_thread,
)

BACKEND = "sim"
_TIMEOUT = timedelta(minutes=30)  # torch asks for one; simulated time stands still
Switch = Callable[[int | None, int | None], None]


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


class SimulatedWorld:
    """Simulated ranks in a default group of the backend "sim"; use as a context manager.

    Each rank keeps its thread, its process groups and its state of the process from one run to the next. While the
    world is open, the process groups of this process belong to its ranks; a process has one world at a time.

    Args:
        size: how many ranks.
        reduction: the order in which reductions add: "rank_order", "ring" or "tree".
        on_switch: called with the rank that has run and the one that runs next (None for no rank), in either's thread.
    """

    def __init__(self, size: int, reduction: Reduction = "rank_order", on_switch: Switch | None = None) -> None:
        self.size = size
        self._scheduler = Scheduler()
        self._network = Network(self._scheduler, reduction)
        self._scheduler.stuck = self._network.stuck
        self._on_switch = on_switch
        self._ranks = {rank: rank for rank in range(size)}
        with ExitStack() as process:
            self._state = process.enter_context(ProcessState.kept(size))
            process.enter_context(world_of_each_thread())
            keep_device_guard()
            process.enter_context(_fewer_objects_for_gc())
            process.enter_context(prefix_stores(SimulatedStore.with_prefix))
            process.enter_context(dispatch_flags_kept())
            process.enter_context(self._network.futures_patched())
            process.callback(set_engine, engine())
            set_engine(partial(self._run_backward, engine()))
            self._scheduler.switched = self._switched
            self._scheduler.start(size)
            process.callback(self._scheduler.end)
            for rank in self._scheduler.ranks:
                rank.guard = BufferGuard(rank.number, self._network.stop)
            process.callback(self.run, lambda _: forget_groups())
            self.run(partial(self._join, SimulatedStore(self._scheduler))).raise_problem()
            self._process = process.pop_all()

    @property
    def problem(self) -> Problem | None:
        """The first problem of the current run."""
        return self._scheduler.problem

    def run(
        self,
        function: Callable[[int], Any],
        schedule: Schedule | None = None,
        faults: Sequence[Any] = (),
        *,
        check_the_end: bool = True,
        backwards: bool = False,
        watch: Watch | None = None,
    ) -> Simulation:
        """Call a function with its rank on each rank; see `simulate`.

        With `check_the_end`, an operation that is never matched is a problem. With `backwards`, the last rank begins.
        """
        network, scheduler = self._network, self._scheduler
        simulation = Simulation([None] * self.size)
        bodies = [partial(self._run_rank, simulation, function, rank) for rank in range(self.size)]
        with injection(faults, scheduler) as hooks:
            network.begin(hooks, watch)
            scheduler.run(bodies, schedule or Recorded(), backwards=backwards)
        if check_the_end:
            network.check_the_end()
        simulation.problem = scheduler.problem
        simulation.choices = tuple(scheduler.choices)
        simulation.events = network.events
        if simulation.problem or simulation.errors:
            network.forget()
        return simulation

    def _run_rank(self, simulation: Simulation, function: Callable[[int], Any], rank: int) -> None:
        try:
            with self._scheduler.ranks[rank].guard.watching():
                simulation.results[rank] = function(rank)
        except RankStopped:
            pass
        except BaseException as error:  # noqa: BLE001  it is the rank's result
            simulation.errors[rank] = error
            self._network.failed(rank)

    def _join(self, store: dist.Store, rank: int) -> None:
        """Make the default group of a rank, in its thread."""
        autograd_in_calling_thread().__enter__()  # the setting belongs to the thread, which ends with the world
        dist.init_process_group(
            BACKEND, store=store, rank=rank, world_size=self.size, timeout=_TIMEOUT, pg_options=self._network
        )
        share_ranks(default_group(), self._ranks)

    def _run_backward(self, run: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Run a backward pass of a rank, and watch what it does."""
        __tracebackhide__ = True
        rank = self._scheduler.current
        if rank is None or rank.thread is not current_thread():
            return run(*args, **keywords)
        with rank.guard.around_backward():
            return run(*args, **keywords)

    def _switched(self, old: Rank | None, new: Rank | None) -> None:
        self._state.switch(old, new)
        if self._on_switch is not None:
            self._on_switch(old.number if old else None, new.number if new else None)

    def close(self) -> None:
        """End the ranks."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _fewer_objects_for_gc() -> Iterator[None]:
    """Let the garbage collector look at new objects only: to look at all of torch took a third of a run's time."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _create_group(options: Any, network: Network | None) -> SimulatedGroup:
    """Make one rank's side of a group; `new_group` does not say of which network."""
    if network is None and dist.is_initialized():
        network = getattr(dist.group.WORLD, "network", None)
    if network is None:
        raise RuntimeError("a process group of the backend 'sim' exists only inside `simulate`")
    return SimulatedGroup(network, options.group_rank, options.group_size, options.store)


register_python_backend(BACKEND, _create_group)
