"""How 1,000 trivial tests of one rank scale from one pytest worker to two (`-n 2`).

Two figures: the wall time of the whole run, start-up included, and that of the tests' part, which begins when the first
test has ended: it waits until the ranks are up. How many cores were busy in that part says what the machine allows: on
two cores, a worker that keeps 1.3 of them busy (itself, its rank, and xdist's controller overlap) can be outdone by two
workers 1.5 times at most.

    python benchmarks/scaling.py [--json results.json]
"""

import argparse
import json
import os
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
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider"]
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        run = time.perf_counter() - start
        seconds, cores = map(float, Path(folder, "span").read_text(encoding="utf-8").split())
        return Wall(workers, run, seconds, cores)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--tests", type=int, default=1000, help="how many tests")
    options = parser.parse_args()
    walls = [measure(workers, options.tests) for workers in (1, 2)]
    one, two = walls
    title = f"{options.tests} trivial tests of one rank"
    table = Table("workers", "whole run", "tests' part", "cores busy in it", title=title)
    for wall in walls:
        table.add_row(str(wall.workers), f"{wall.run:.1f} s", f"{wall.tests:.1f} s", f"{wall.cores:.2f}")
    table.add_row("gain", f"{one.run / two.run:.2f}", f"{one.tests / two.tests:.2f}", f"{two.cores / one.cores:.2f}")
    Console().print(table)
    print(f"load: {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(wall) for wall in walls], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
