"""Random schedules, for what is too large to explore."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from pytest_ddp.simulated.exploration.finding import Exploration, Judge
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Option, Recorded
from pytest_ddp.simulated.simulation import simulate

_RATES = (0.02, 0.1, 0.3, 1.0)  # some bugs need few deviations, others need many


class RandomSchedule:
    """Takes another option than the default now and then; the seed decides all.

    Args:
        seed: any text; the same one gives the same choices in every process.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311  no secret
        self._rate = self._random.choice(_RATES)

    def choose(self, options: Sequence[Option]) -> int:
        """Return 0, or a random option."""
        return self._random.randrange(len(options)) if self._random.random() < self._rate else 0


def explore_randomly(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    runs: int = 1_000,
    seed: str = "0",
    reduction: Reduction = "rank_order",
) -> Exploration:
    """Run a function under the default schedule and under random ones; stop at the first that fails.

    Args:
        function: called on each rank.
        world_size: how many ranks.
        *arguments: its arguments; it must not change them.
        runs: how many schedules.
        seed: schedule number k is `RandomSchedule(f"{seed} {k}")`.
        reduction: as for `simulate`.

    Returns:
        The finding, shrunk to the fewest deviations; never a certificate.
    """
    judge = Judge(lambda schedule: simulate(function, world_size, *arguments, schedule=schedule, reduction=reduction))
    for number in range(runs):
        name = f"{seed} {number}" if number else None
        schedule = Recorded() if name is None else RandomSchedule(name)
        run = simulate(function, world_size, *arguments, schedule=schedule, reduction=reduction)
        if (failure := judge.failure(run)) is not None:
            return Exploration(number + 1, finding=judge.shrunk(failure, run.choices, name))
    return Exploration(runs)
