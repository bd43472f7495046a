"""The benchmark of all-reduces computes bandwidths from seconds, and prints them as a table."""

import io

import pytest
from rich.console import Console

from pytest_ddp import DDPContext, distributed
from reference.communication import all_reduce_benchmark
from reference.communication.all_reduce_benchmark import Measurement, benchmark, bus_bandwidth, measure, report


def test_bus_bandwidth_counts_what_a_link_must_carry() -> None:
    assert bus_bandwidth(1000, 0.5, world_size=2) == 2000
    assert bus_bandwidth(1000, 0.5, world_size=4) == 3000
    assert bus_bandwidth(1000, 0.5, world_size=1) == 0


def test_a_measurement_tells_median_and_quartiles() -> None:
    measurement = Measurement(8, [5.0, 1.0, 2.0, 3.0, 4.0])
    assert measurement.median == 3
    assert measurement.quartiles == (2, 4)


@distributed(world_size=2)
def test_a_repetition_counts_as_its_slowest_rank(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 5.0] if ddp.rank == 0 else [3.0, 2.0])
    monkeypatch.setattr(all_reduce_benchmark, "_time_one", lambda _tensor: next(times))
    assert measure(4000, warm_up=1, repetitions=2) == Measurement(4000, [3.0, 5.0])


@distributed(world_size=2)
def test_rank_0_prints_a_line_for_each_size(ddp: DDPContext, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark([1000, 1_000_000], warm_up=1, repetitions=3)
    output = capsys.readouterr().out
    if ddp.rank != 0:
        assert not output
        return
    assert "all-reduce over 2 ranks (gloo, cpu)" in output
    assert [line.split("│")[1].strip() for line in output.splitlines() if line.startswith("│")] == ["0.001", "1"]


@distributed(world_size=1)
def test_the_table_gives_the_bandwidth_and_overhead_that_fit(ddp: DDPContext) -> None:
    text = printed([Measurement(size, [size / 2e9 + 1e-4] * 3) for size in (10**3, 10**6, 10**9)])
    assert "fit: w = 2.00 GB/s, o = 100 us per call" in text
    assert "500.100 to 500.100" in text
    assert ddp.world_size == 1


@distributed(world_size=1)
def test_times_that_do_not_fit_are_reported_in_the_table() -> None:
    assert "no fit: all-reduces of 1 different sizes" in printed([Measurement(1000, [1.0, 1.0])])


def printed(measurements: list[Measurement]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(report(measurements, world_size=4))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
