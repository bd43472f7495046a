"""How what one controller does grows with ranks, tests and submissions, and where it saturates (docs/scale.md).

Each sweep measures the CPU time of one process, so that a busy machine changes little:

- `ranks`: the controller's for a trivial test, by the number of real ranks;
- `simulated`: the same with ranks that another process simulates, which answer at once (`simulated_ranks.py`);
- `tests`: the controller's for a run, by the number of tests;
- `submissions`: that of a process that grades a course, by the number of submissions, without the graders
  (`simulated_course.py`);
- `resume`: the same where all of them are graded already.

For each sweep: a line (for real ranks, whose store is in the controller, a parabola), fitted to relative errors, its
largest residual, and the exponent between the two largest sizes, which is 1 where growth is linear.

    python benchmarks/scale.py [--json scale.json] [--sweeps ranks,tests] [--largest 100]
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
from functools import partial
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


def per_test(ranks: int, *, simulated: bool, tests: int = 12) -> Sample:
    """Return the controller's CPU time for one trivial test; the first two are left out, since ranks start then."""
    at, peak = run_suite(ranks, tests, simulated=simulated)
    return Sample(ranks, (at[-1] - at[2]) / (len(at) - 3), peak)


def per_run(tests: int) -> Sample:
    """Return the controller's CPU time for a run of tests on two simulated ranks, but for pytest's start."""
    at, peak = run_suite(2, tests, simulated=True)
    return Sample(tests, at[-1] - at[1], peak)


def course(submissions: int, what: str) -> Sample:
    """Return the CPU time of a course whose graders are simulated: of its grade, or of one more ("resume")."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).with_name("simulated_course.py")), folder, str(submissions)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return Sample(submissions, found[what], found["peak"])


@dataclass(frozen=True)
class Sweep:
    """What is measured by a size, and the size for which the line is drawn out.

    Attributes:
        unit: what the size counts.
        sizes: the sizes.
        measure: measures one of them.
        modelled: the size that is modelled.
        degree: of the polynomial that is fitted.
    """

    unit: str
    sizes: Sequence[int]
    measure: Callable[[int], Sample]
    modelled: int
    degree: int = 1


SWEEPS = {
    "ranks": Sweep("ranks", (2, 4, 8, 16, 32), partial(per_test, simulated=False), NODES * RANKS_PER_NODE, 2),
    "simulated": Sweep("ranks", (2, 8, 32, 128, 512, 2048), partial(per_test, simulated=True), NODES * RANKS_PER_NODE),
    "tests": Sweep("tests", (50, 100, 200, 500, 1000), per_run, 100_000),
    "submissions": Sweep("submissions", (10, 50, 200, 1000, 5000), partial(course, what="grade"), SUBMISSIONS),
    "resume": Sweep("submissions", (10, 50, 200, 1000, 5000), partial(course, what="resume"), SUBMISSIONS),
}


@dataclass(frozen=True)
class Growth:
    """CPU seconds as a polynomial of the size.

    Attributes:
        coefficients: of the powers 0, 1, ...
        residual: the largest deviation of a sample from the polynomial, as a share of the sample.
        exponent: the power of the size by which the seconds grow between the two largest sizes.
    """

    coefficients: tuple[float, ...]
    residual: float
    exponent: float

    def at(self, size: int) -> float:
        """Return the CPU seconds at a size."""
        return sum(one * size**power for power, one in enumerate(self.coefficients))

    def __str__(self) -> str:
        powers = ("", " n", " n²")
        return (
            " + ".join(f"{one * 1e3:.3g}{power}" for one, power in zip(self.coefficients, powers, strict=False)) + " ms"
        )


def fit(samples: Sequence[Sample], degree: int) -> Growth:
    """Fit a polynomial to relative errors."""
    sizes = np.array([sample.size for sample in samples], dtype=float)
    cpu = np.array([sample.cpu for sample in samples])
    powers = np.stack([sizes**power for power in range(degree + 1)], axis=1)
    found, *_ = np.linalg.lstsq(powers / cpu[:, None], np.ones_like(cpu), rcond=None)
    residual = float(np.max(np.abs(powers @ found / cpu - 1)))
    exponent = math.log(cpu[-1] / cpu[-2]) / math.log(sizes[-1] / sizes[-2])
    return Growth(tuple(map(float, found)), residual, exponent)


def shown(name: str, sweep: Sweep, samples: Sequence[Sample]) -> Table:
    """Return the samples, the fit, and what it says of the size that is modelled."""
    growth = fit(samples, sweep.degree)
    table = Table(sweep.unit, "CPU", "of the fit", "peak memory", title=name)
    for one in samples:
        share = one.cpu / growth.at(one.size)
        table.add_row(f"{one.size:,}", f"{one.cpu * 1e3:,.2f} ms", f"{share:.0%}", f"{one.peak / 1e6:,.0f} MB")
    table.add_section()
    table.add_row(f"{sweep.modelled:,} (model)", f"{growth.at(sweep.modelled):,.1f} s", "", "")
    table.caption = f"{growth}; largest residual {growth.residual:.0%}; exponent at the end {growth.exponent:.2f}"
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the samples and the fits here too")
    parser.add_argument("--sweeps", default=",".join(SWEEPS), help="which of them, separated by commas")
    parser.add_argument("--largest", type=int, default=10**6, help="leave out larger sizes")
    options = parser.parse_args()
    found = {}
    for name in options.sweeps.split(","):
        sweep = SWEEPS[name]
        samples = [sweep.measure(size) for size in sweep.sizes if size <= options.largest]
        Console().print(shown(name, sweep, samples))
        found[name] = {"samples": [asdict(sample) for sample in samples], "fit": asdict(fit(samples, sweep.degree))}
    print(f"load: {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
