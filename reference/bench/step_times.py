"""The times of training steps: measured on ranks in interleaved rounds, and as tables and sentences show them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from reference.bench.contestants import Contestant
from reference.bench.method import interleave, ratios, repeat_error, spread
from reference.bench.ranks import gather
from reference.bench.result import Column

FEWEST_ROUNDS = 5  # however long they take
_REPEATABLE = 0.03  # a larger repeat error is a reason to distrust small differences

Seconds = Mapping[str, Sequence[float]]
"""Seconds of the steps of each variant on the slowest rank, round by round."""

STEP_COLUMNS = (Column("step", "ms"), Column("from", "ms"), Column("to", "ms"))
"""The median of a step, and its quartiles."""


# On the ranks


def time_steps(
    contestants: Mapping[str, Contestant], tokens: Tensor, rounds: int, warm_up: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of each contestant's steps on the slowest rank, round by round; the same on every rank.

    Args:
        contestants: by name; the same on every rank.
        tokens: this rank's batch.
        rounds: steps of each contestant that count, at most.
        warm_up: steps before those; one more is taken, to see how many rounds fit.
        seconds: time for all of these steps; at least five rounds count, or `rounds` if that is less.
    """
    steps = {name: _timed(one, tokens) for name, one in contestants.items()}
    began = time.perf_counter()
    first = interleave(steps, rounds=1, warm_up=warm_up)
    one_round = slowest(sum(times[0] for times in first.values()))
    fitting = int((seconds - slowest(time.perf_counter() - began)) / one_round)
    mine = interleave(steps, rounds=min(rounds, max(FEWEST_ROUNDS, fitting)), warm_up=0)
    every = gather(mine)
    return {name: [max(ranks) for ranks in zip(*(one[name] for one in every), strict=True)] for name in mine}


def slowest(seconds: float) -> float:
    """The seconds of the rank that took longest; the same on every rank."""
    return max(gather(seconds))


def _timed(one: Contestant, tokens: Tensor) -> Callable[[], float]:
    def step() -> float:
        dist.barrier()
        began = time.perf_counter()
        one.step(tokens)
        return time.perf_counter() - began

    return step


# From the raw numbers


def step_cells(seconds: Sequence[float]) -> list[float]:
    """The cells of `STEP_COLUMNS`: median and quartiles in milliseconds."""
    step = spread(seconds).scaled(1e3)
    return [step.median, step.first, step.third]


def compared(steps: Seconds, name: str, beside: str) -> str:
    """How long a variant's step is beside another one's, within a round: `0.50 of naive's (quartiles ...)`."""
    ratio = ratios(steps[name], steps[beside])
    return f"{ratio.median:.2f} of {beside}'s (quartiles {ratio.first:.2f} to {ratio.third:.2f})"


def repeatability(steps: Seconds, names: Iterable[str], base: str) -> list[str]:
    """A sentence: by how much the ratios of these variants to a base differ if measured twice; none with one round."""
    if len(steps[base]) < 2:  # noqa: PLR2004  # two measurements
        return []
    error = max(repeat_error(steps[name], steps[base]) for name in names)
    sentence = f"Measured twice, in every other round, the ratios to {base} differ by at most {error:.0%}"
    return [sentence + (", so smaller differences mean nothing." if error > _REPEATABLE else ".")]
