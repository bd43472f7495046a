"""How what one controller does grows with ranks, tests and submissions, and where it saturates (docs/scale.md).

Four sweeps, each of the CPU time of one process, so that a busy machine changes little:

- `ranks`: the controller's for a trivial test, by the number of real ranks;
- `simulated`: the same with ranks that one process simulates, which answer at once (`simulated_ranks.py`);
- `tests`: the controller's for a run, by the number of tests: collection and the tests' part;
- `submissions`: the grader's for a course, by the number of submissions that are graded already: what it does besides
  the grading itself (plan, records, reports, gradebook, class page).

For each sweep: a line `a + b n`, fitted to relative errors, its largest residual, and the exponent between the two
largest sizes, which is 1 where growth is linear.

    python benchmarks/scale.py [--json scale.json] [--sweeps ranks,simulated,tests,submissions] [--scale 0.1]
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

SUITE = """
import pytest
from pytest_ddp import distributed

@pytest.mark.parametrize("number", range({tests}))
@distributed(world_size={ranks})
def test_it(number):
    pass
"""
# The store of the process group is in the controller too, so its thread counts.
CONFTEST = """
import json, pathlib, resource, time

at = []

def pytest_collection_finish(session):
    at.append(time.process_time())

def pytest_runtest_logreport(report):
    assert not report.failed, report.longreprtext
    if report.when == "teardown":
        at.append(time.process_time())

def pytest_sessionfinish(session):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pathlib.Path("at.json").write_text(json.dumps([*at, peak]))
"""
NODES, RANKS_PER_NODE, SUBMISSIONS = 1000, 8, 100_000


@dataclass(frozen=True)
class Sample:
    """CPU seconds and peak memory in bytes at one size."""

    size: int
    cpu: float
    peak: int


def run_suite(ranks: int, tests: int, *, simulated: bool) -> tuple[list[float], int]:
    """Run trivial tests; return the CPU time of the controller after collection and after each test, and its peak."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_suite.py").write_text(SUITE.format(tests=tests, ranks=ranks), encoding="utf-8")
        Path(folder, "conftest.py").write_text(CONFTEST, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
        command += ["-p", "simulated_ranks" if simulated else "large_machine"]
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        *at, peak = json.loads(Path(folder, "at.json").read_text(encoding="utf-8"))
        return at, peak
