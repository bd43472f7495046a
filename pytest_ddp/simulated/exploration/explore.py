"""Runs a function under every schedule that a rank can tell from the others.

Runs whose steps have the same partial order are **equivalent**: every rank reads the same bits at the same places
(`trace` says which steps are dependent). One run of each class is enough. After a run, each race (two dependent steps
that could have come in the other order) is reversed: the steps before the race, then those that do not depend on its
first step, then its second step. This goes on until all reversals lead to runs that are known.

What this rests on: ranks affect one another by operations alone, not by files or by Python objects that they share. A
rank touches no tensor of an operation in flight unseen: `guard` sees what goes through torch's dispatcher, so not NumPy
and raw pointers (with `every_landing`, it need not see anything). A rank can be paused where it launches an operation,
where it begins to wait, and where it polls.

Source: Flanagan and Godefroid, "Dynamic Partial-Order Reduction for Model Checking Software" (POPL 2005); Abdulla et
al., "Optimal Dynamic Partial Order Reduction" (POPL 2014), for what is run to reverse a race.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from pytest_ddp.simulated.exploration.finding import Certificate, Exploration, Finding, Judge
from pytest_ddp.simulated.exploration.guided import GuidedRun
from pytest_ddp.simulated.exploration.trace import Token, Trace
from pytest_ddp.simulated.network import Watch
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Schedule
from pytest_ddp.simulated.simulation import simulate
from pytest_ddp.simulated.world import Simulation, Switch

_DEPTH = 4


@dataclass(frozen=True)
class _Program:
    """What is explored."""

    function: Callable[..., Any]
    world_size: int
    arguments: tuple[Any, ...]
    reduction: Reduction
    every_landing: bool
    on_switch: Switch | None

    def under(self, schedule: Schedule) -> Simulation:
        """Run it under a schedule."""
        return self._simulate(self.function, schedule)

    def run(self, guide: list[Token]) -> tuple[Simulation, GuidedRun]:
        """Run it, with the steps of the guide first."""
        guided = GuidedRun(guide, every_landing=self.every_landing)
        return self._simulate(guided.watched(self.function), guided, watch=guided.watch), guided

    def _simulate(self, function: Callable[..., Any], schedule: Schedule, watch: Watch | None = None) -> Simulation:
        return simulate(
            function,
            self.world_size,
            *self.arguments,
            schedule=schedule,
            reduction=self.reduction,
            watch=watch,
            on_switch=self.on_switch,
        )


def explore(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    most: int = 1_000,
    most_to_shrink: int = 10_000,
    reduction: Reduction = "rank_order",
    every_landing: bool = False,
    place_landings: bool = False,
    on_switch: Switch | None = None,
) -> Exploration:
    """Run a function under all distinguishable schedules; stop at the first that fails.

    A run fails if it has a problem or a rank raises, or if a rank returns other bits than in the default run.

    Args:
        function: called on each rank.
        world_size: how many ranks.
        *arguments: its arguments; it must not change them.
        most: how many schedules to run at most. If there are more, there is no certificate.
        most_to_shrink: how many more runs may shrink a schedule that fails.
        reduction: as for `simulate`.
        every_landing: suppose that a rank notices when the results of an operation land, even if it touches none of its
            tensors in between. The number of schedules then grows very fast.
        place_landings: when all are explored, move each landing of the default run to every other place on its rank,
            one at a time. By the equivalence this changes nothing; the runs check it. Only problems and other results
            count.
        on_switch: as for `simulate`.

    Returns:
        The finding, shrunk to the fewest deviations; else the certificate, if all schedules were run.
    """
    program = _Program(function, world_size, arguments, reduction, every_landing, on_switch)
    judge = Judge(program.under, most_to_shrink)
    search = _Search(program, judge)
    while search.todo and search.runs < most:
        if (finding := search.step()) is not None:
            return Exploration(search.runs, len(search.known), finding)
    if search.todo:
        return Exploration(search.runs, len(search.known))
    placed = list(search.first.placements()) if place_landings else []
    for guide in placed:
        run, _ = program.run(guide)
        if (failure := judge.failure(run)) is not None:
            return Exploration(search.runs, len(search.known), judge.shrunk(failure, run.choices))
    certificate = Certificate(world_size, search.first.operations, len(search.known), search.runs, len(placed))
    return Exploration(search.runs, len(search.known), certificate=certificate)


class _Search:
    """The reversals that are to be run, and the orders that are known.

    Attributes:
        todo: guides of runs, those with few reversals first.
        known: the identities of the traces so far.
        runs: how many runs there were.
        first: the trace of the default run.
    """

    def __init__(self, program: _Program, judge: Judge) -> None:
        self._program, self._judge = program, judge
        self.todo: deque[list[Token]] = deque([[]])
        self.known: set[frozenset[int]] = set()
        self.runs = 0
        self.first: Trace
        self._asked: set[Hashable] = set()

    def _next_guide(self) -> list[Token]:
        """Return a guide with few reversals; each time, then some that reverse more and more of what came of it."""
        is_first = self.runs < _DEPTH or self.runs % _DEPTH == 0
        return self.todo.popleft() if is_first else self.todo.pop()

    def step(self) -> Finding | None:
        """Run what is next; return what is wrong, or note what is to be run because of it."""
        run, guided = self._program.run(self._next_guide())
        trace = Trace(guided.finish())
        self.first = self.first if self.runs else trace
        self.runs += 1
        if (failure := self._judge.failure(run)) is not None:
            return self._judge.shrunk(failure, run.choices)
        if trace.identity not in self.known:
            self.known.add(trace.identity)
            new = [(key, guide) for key, guide in trace.reversals() if key not in self._asked]
            self._asked.update(key for key, _ in new)
            self.todo.extend(guide for _, guide in new)
        return None
