"""Each benchmark of a report runs at a size that fits into the time, or is missing with a reason."""

from argparse import Namespace
from pathlib import Path

import pytest

from reference.bench.benchmark import Benchmark
from reference.bench.registry import BENCHMARKS
from reference.bench.report import choose, run_all, sizes
from reference.bench.result import Result

ALL = list(BENCHMARKS)


@pytest.mark.parametrize("minutes", [2, 5, 10, 30])
@pytest.mark.parametrize("slowness", [1.0, 2.0])
def test_the_planned_sizes_fit_the_time(minutes: float, slowness: float) -> None:
    left = minutes * 60.0
    for index in range(len(ALL)):
        size = choose(ALL[index:], left, slowness)
        left -= size.seconds * slowness if size else 0
    assert left >= 0


@pytest.mark.parametrize("minutes", [2, 3, 4, 5, 7, 10, 15])
def test_from_two_minutes_on_every_benchmark_is_planned(minutes: float) -> None:
    left = minutes * 60.0
    for index in range(len(ALL)):
        size = choose(ALL[index:], left, 1.0)
        assert size is not None
        left -= size.seconds


def test_with_time_enough_every_benchmark_runs_at_its_default_size() -> None:
    assert [choose(ALL[index:], 3600, 1.0) for index in range(len(ALL))] == [sizes(name)[0] for name in ALL]


@pytest.mark.parametrize("name", ALL)
def test_every_size_is_a_command_line(name: str) -> None:
    for size in sizes(name):
        assert isinstance(BENCHMARKS[name].parse(size.arguments.split(), Path("out")), Namespace)
    assert [size.seconds for size in sizes(name)] == sorted((size.seconds for size in sizes(name)), reverse=True)


def test_a_benchmark_that_fails_or_finds_no_time_is_missing_with_the_reason() -> None:
    def run(benchmark: Benchmark, arguments: str) -> Result:
        if benchmark.name == "ddp":
            raise RuntimeError("rank 0 failed:\n  File ...\nValueError: no such model")
        return Result(benchmark.name, arguments, [], [], [], {})

    some = {name: BENCHMARKS[name] for name in ("roofline", "ddp")}
    sections, missing = run_all(some, 3600, run)
    assert [section.result.name for section in sections] == ["roofline"]
    assert missing == {"ddp": "it failed: ValueError: no such model"}
    assert run_all(some, 1, run)[1] == dict.fromkeys(some, "no time was left; give more --minutes")


def test_an_interrupted_report_has_what_was_measured_before() -> None:
    def run(benchmark: Benchmark, arguments: str) -> Result:
        if benchmark.name == "ddp":
            raise KeyboardInterrupt
        return Result(benchmark.name, arguments, [], [], [], {})

    sections, missing = run_all({name: BENCHMARKS[name] for name in ("roofline", "ddp", "step")}, 3600, run)
    assert [section.result.name for section in sections] == ["roofline"]
    assert missing == dict.fromkeys(("ddp", "step"), "it was interrupted")
