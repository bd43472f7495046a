"""What exploration returns: a certificate, or what is wrong, with the schedule that shows it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_ddp.simulated.exploration.bits import digest
from pytest_ddp.simulated.exploration.shrinking import Choices, Deviation, Noting, fewest_deviations
from pytest_ddp.simulated.schedule import Schedule
from pytest_ddp.simulated.world import Simulation


@dataclass(frozen=True)
class Failure:
    """How a run failed.

    Attributes:
        kind: the name of the problem's or exception's type, or "DifferentResults"; shrinking keeps it.
        text: what is wrong.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Finding:
    """A schedule under which a function fails.

    Attributes:
        failure: how it fails.
        choices: the schedule, with the fewest deviations; `Recorded(choices)` replays it.
        deviations: the deviations in words; none if it fails under the default schedule.
        found: the schedule as it was found.
        seed: of the random schedule that found it; None for others.
    """

    failure: Failure
    choices: Choices
    deviations: tuple[Deviation, ...]
    found: Choices
    seed: str | None = None

    def __str__(self) -> str:
        where = "\n".join(f"  {each}" for each in self.deviations) or "  the default schedule"
        seed = "" if self.seed is None else f"\nfound by RandomSchedule({self.seed!r})"
        return f"{self.failure.kind}: {self.failure.text}\n{where}\nschedule: Recorded({self.choices}){seed}"


@dataclass(frozen=True)
class Certificate:
    """States that every schedule was explored, and that none fails; see `explore` for what it rests on.

    Attributes:
        ranks: how many ranks.
        operations: how many operations they make together.
        orders: how many orders a rank can tell from the others.
        runs: how many runs that took.
        placed: how many more runs had one landing at another place.
    """

    ranks: int
    operations: int
    orders: int
    runs: int
    placed: int = 0

    def __str__(self) -> str:
        of = f"of {self.ranks} ranks and {self.operations} operation{'s' if self.operations > 1 else ''}"
        runs = "1 run" if self.runs == 1 else f"{self.runs:,} runs"
        placed = f" {self.placed:,} more runs, each with one result at another place, give the same bits."
        text = (
            f"The only distinguishable order {of} has no problem ({runs})."
            if self.orders == 1
            else f"All {self.orders:,} distinguishable orders {of} give the same bits; none deadlocks ({runs})."
        )
        return text + (placed if self.placed else "")


@dataclass(frozen=True)
class Exploration:
    """What came of an exploration.

    Attributes:
        runs: how many schedules were run, without those that shrank the finding.
        orders: how many of them a rank can tell from the others; 0 where they were not compared.
        finding: a schedule that fails.
        certificate: None if there is a finding, or if not all schedules were run.
    """

    runs: int
    orders: int = 0
    finding: Finding | None = None
    certificate: Certificate | None = None

    def raise_finding(self) -> None:
        """Raise AssertionError if a schedule fails."""
        if self.finding is not None:
            raise AssertionError(str(self.finding))


class Judge:
    """Decides whether a run fails, and shrinks the schedule of one that does.

    Args:
        simulate: runs the function under a schedule.
        most_to_shrink: how many runs may shrink a schedule.
    """

    def __init__(self, simulate: Callable[[Schedule], Simulation], most_to_shrink: int = 10_000) -> None:
        self._simulate = simulate
        self._left = most_to_shrink
        self._expected: list[str] = []

    def failure(self, run: Simulation) -> Failure | None:
        """Return how a run fails; the first run without a failure has the right results."""
        if run.problem is not None:
            return Failure(type(run.problem).__name__, run.problem.text)
        for rank, error in sorted(run.errors.items()):
            return Failure(type(error).__name__, f"rank {rank} raised {type(error).__name__}: {error}")
        results = [digest(result) for result in run.results]
        self._expected = self._expected or results
        others = [rank for rank, pair in enumerate(zip(results, self._expected, strict=True)) if pair[0] != pair[1]]
        return _different(others) if others else None

    def shrunk(self, failure: Failure, choices: Choices, seed: str | None = None) -> Finding:
        """Return the finding with the fewest deviations that fails in the same way."""

        def fails(candidate: Choices) -> list[int] | None:
            self._left -= 1
            if self._left < 0:
                return None
            noting = Noting(candidate)
            found = self.failure(self._simulate(noting))
            return noting.sizes if found is not None and found.kind == failure.kind else None

        core = fewest_deviations(choices, fails)
        noting = Noting(core)
        last = self.failure(self._simulate(noting)) or failure
        core = tuple(noting.taken[: len(core)])
        return Finding(last, core, tuple(noting.deviations), choices, seed)


def _different(ranks: Iterable[int]) -> Failure:
    names = ", ".join(map(str, ranks))
    return Failure("DifferentResults", f"ranks {names} return other bits than under the default schedule")
