"""Seconds per trivial distributed test: warm ranks and ranks of its own, against `mp.spawn` in every test.

All ways run the same body (one all-reduce, one assert) under pytest in the same run; the figure is the median over a
way's tests after its first, setup and teardown included, and the gain is the ratio to `mp.spawn`.

    python benchmarks/per_test_cost.py [--json results.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

WORLD_SIZES = (2, 4)
SUITE = """
import pytest, torch, torch.distributed as dist, torch.multiprocessing as mp
from pytest_ddp import distributed

def body():
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total[0] == dist.get_world_size()

@pytest.mark.parametrize("number", range({warm} + 1))
@distributed(world_size={size})
def test_warm(number): body()

@pytest.mark.parametrize("number", range({own} + 1))
@distributed(world_size={size}, isolation="process")
def test_own(number): body()

def spawned(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size={size})
    body()
    dist.destroy_process_group()

@pytest.mark.parametrize("number", range({spawn} + 1))
def test_spawn(number, tmp_path): mp.spawn(spawned, (tmp_path / "store",), nprocs={size})
"""
CONFTEST = """
import collections, json, pathlib
seconds = collections.defaultdict(float)

def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration
    assert not report.failed, report.longreprtext

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):  # ranks have sessions too; only the controller reports
        pathlib.Path("seconds.json").write_text(json.dumps(seconds))
"""


@dataclass(frozen=True)
class Cost:
    """The median seconds of one test, done one way at one world size."""

    way: str
    world_size: int
    seconds: float
    gain: float


def measure(size: int, counts: dict[str, int]) -> list[Cost]:
    """Run the suite once; return the cost of each way, the gain against `mp.spawn` in the same run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_suite.py").write_text(SUITE.format(size=size, **counts), encoding="utf-8")
        Path(folder, "conftest.py").write_text(CONFTEST, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seconds: dict[str, float] = json.loads(Path(folder, "seconds.json").read_text(encoding="utf-8"))
    median = {way: statistics.median(_without_first(way, seconds)) for way in ("warm", "own", "spawn")}
    return [Cost(way, size, value, median["spawn"] / value) for way, value in median.items()]


def _without_first(way: str, seconds: dict[str, float]) -> list[float]:
    return [value for name, value in seconds.items() if f"::test_{way}[" in name and not name.endswith("[0]")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--warm", type=int, default=100, help="warm tests per world size")
    parser.add_argument("--own", type=int, default=15, help="tests with ranks of their own per world size")
    parser.add_argument("--spawn", type=int, default=3, help="tests with mp.spawn per world size")
    options = parser.parse_args()
    counts = {"warm": options.warm, "own": options.own, "spawn": options.spawn}
    costs = [cost for size in WORLD_SIZES for cost in measure(size, counts)]
    table = Table("way", "ranks", "median per test", "times faster than mp.spawn", title="trivial distributed test")
    names = {"warm": "@distributed", "own": '@distributed(isolation="process")', "spawn": "mp.spawn in the test"}
    for cost in costs:
        table.add_row(names[cost.way], str(cost.world_size), f"{1000 * cost.seconds:.1f} ms", f"{cost.gain:.0f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
