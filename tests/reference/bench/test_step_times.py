"""Steps are timed in interleaved rounds that fit a time, and compared within a round."""

import pytest

from pytest_ddp import DDPContext, distributed
from reference.bench.contestants import NONE, Workload, batch, contestant
from reference.bench.step_times import FEWEST_ROUNDS, compared, repeatability, step_cells, time_steps

WORKLOAD = Workload("16x1", samples=1, words=4, bucket_mb=1.0)
STEPS = {"base": [1.0, 3.0, 1.0, 3.0], "double": [2.0, 6.0, 2.0, 6.0], "drifting": [1.0, 3.3, 1.0, 3.3]}


@distributed(world_size=2)
@pytest.mark.parametrize(("rounds", "seconds", "expected"), [(3, 60, 3), (8, 0, FEWEST_ROUNDS), (3, 0, 3)])
def test_as_many_rounds_are_timed_as_fit_but_not_fewer_than_five(
    ddp: DDPContext, rounds: int, seconds: float, expected: int
) -> None:
    del ddp
    names = (NONE, "bucketed")
    made = {name: contestant(name, WORKLOAD) for name in names}
    found = time_steps(made, batch(WORKLOAD), rounds=rounds, warm_up=1, seconds=seconds)
    assert {name: len(times) for name, times in found.items()} == dict.fromkeys(names, expected)
    assert min(min(times) for times in found.values()) > 0


def test_cells_are_median_and_quartiles_in_milliseconds() -> None:
    assert step_cells([0.001, 0.002, 0.005]) == pytest.approx([2, 1.5, 3.5])


def test_steps_are_compared_within_a_round() -> None:
    assert compared(STEPS, "double", "base") == "2.00 of base's (quartiles 2.00 to 2.00)"


def test_a_repeat_error_above_3_percent_is_a_reason_for_distrust() -> None:
    once = "Measured twice, in every other round, the ratios to base differ by at most"
    [double] = repeatability(STEPS, ["double"], "base")
    [both] = repeatability(STEPS, ["double", "drifting"], "base")
    assert double == f"{once} 0%."
    assert both == f"{once} 10%, so smaller differences mean nothing."


def test_one_round_measures_nothing_twice() -> None:
    assert repeatability({"base": [1.0], "double": [2.0]}, ["double"], "base") == []
