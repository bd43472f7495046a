"""How 1,000 trivial tests of one rank scale from one pytest worker to two (`-n 2`).

Two figures: the wall time of the whole run, start-up included, and that of the tests' part, which begins when the first
test has ended: it waits until the ranks are up. How many cores were busy in that part says what the machine has left:
on two cores, one worker keeps 1.35 of them busy (itself, its rank, and xdist's controller overlap). Two gain more than
that leaves where a core that does not fall asleep between two messages needs less for each.

A run takes some seconds, and a shared machine lends a core elsewhere for as long: the gain is the median of pairs.

    python benchmarks/scaling.py [--json results.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

SUITE = """
import pytest, torch, torch.distributed as dist
from pytest_ddp import distributed

@pytest.mark.parametrize("number", range({tests}))
@distributed(world_size=1)
def test_it(number):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total[0] == 1
"""
CONFTEST = """
import pathlib, psutil

ends, idle = [], []

def pytest_runtest_logreport(report):
    assert not report.failed, report.longreprtext
    if report.when == "teardown":
        ends.append(report.stop)
        idle.append(psutil.cpu_times().idle)

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        seconds = max(ends) - min(ends)
        busy = psutil.cpu_count() - (max(idle) - min(idle)) / seconds
        pathlib.Path("span").write_text(f"{seconds} {busy}")
"""


@dataclass(frozen=True)
class Wall:
    """Seconds with a number of workers: the whole run, and from the first test's end to the last one's.

    `cores` is how many were busy in the second, whoever used them.
    """

    workers: int
    run: float
    tests: float
    cores: float


def measure(workers: int, tests: int) -> Wall:
    """Run the suite once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_suite.py").write_text(SUITE.format(tests=tests), encoding="utf-8")
        Path(folder, "conftest.py").write_text(CONFTEST, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-n", str(workers), "-p", "no:cacheprovider", "-p", "no:asyncio"]
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        run = time.perf_counter() - start
        seconds, cores = map(float, Path(folder, "span").read_text(encoding="utf-8").split())
        return Wall(workers, run, seconds, cores)


def pairs(count: int, tests: int) -> list[tuple[Wall, Wall]]:
    """Each with one worker and then with two: what slows the machine for a while meets both."""
    return [(measure(1, tests), measure(2, tests)) for _ in range(count)]


def shown(measured: list[tuple[Wall, Wall]], title: str) -> Table:
    """A row for every run, and of the gains in each pair the least, the median and the greatest."""
    table = Table("workers", "whole run", "tests' part", "cores busy in it", title=title)
    for wall in (wall for pair in measured for wall in pair):
        table.add_row(str(wall.workers), f"{wall.run:.1f} s", f"{wall.tests:.1f} s", f"{wall.cores:.2f}")
    table.add_section()
    whole = [one.run / two.run for one, two in measured]
    tests = [one.tests / two.tests for one, two in measured]
    cores = [two.cores / one.cores for one, two in measured]
    for name, chosen in (("least", min), ("median", statistics.median), ("greatest", max)):
        table.add_row(f"{name} gain", *(f"{chosen(gains):.2f}" for gains in (whole, tests, cores)))
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--tests", type=int, default=1000, help="how many tests")
    parser.add_argument("--pairs", type=int, default=7, help="how many runs with each number of workers")
    options = parser.parse_args()
    measured = pairs(options.pairs, options.tests)
    Console().print(shown(measured, f"{options.tests} trivial tests of one rank"))
    print(f"load: {os.getloadavg()[0]:.1f}")
    if options.json:
        walls = [asdict(wall) for pair in measured for wall in pair]
        options.json.write_text(json.dumps(walls, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
