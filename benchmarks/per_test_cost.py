"""Seconds per trivial distributed test, ours and its peers', side by side in one run.

The figure is the median over a way's tests after its first, from the start of one to the start of the next: everything
that a test costs, what pytest does around it too. The first one, which starts what the others find started, is a figure
of its own: each of torch's classes starts processes, our ranks serve all modules of a run. A way is compared with ours
of its own isolation class: the process group is reused, or fresh for every test, or the processes are new. What takes
milliseconds is run in rounds, since a machine may be faster in one minute than in the next. Nobody has other plugins
beside pytest's own. `--json` keeps the figures, the load of the machine among them. Needs the extra `bench`.

    python benchmarks/per_test_cost.py [--json results.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from suites import CONFTEST, WAYS, modules

WORLD_SIZES = (2, 4)
BARE = {  # an all-reduce on the core's ranks, without pytest
    "pytest-ddp: @distributed": "pytest-ddp: bare pool, a group each",
    "pytest-ddp: @distributed, a fixture's group": "pytest-ddp: bare pool, one group",
}
OURS = {"group reused": "shared", "fresh group": "warm", "new processes": "own"}


@dataclass(frozen=True)
class Cost:
    """The median seconds of one test, done one way at one world size; `ratio` is to ours of the same class.

    `first` is the seconds of the first test.
    """

    way: str
    isolation: str
    world_size: int
    seconds: float
    first: float
    ratio: float
    load: float


def measure(size: int, counts: dict[str, int], rounds: int) -> list[Cost]:
    """Run every way, the quick ones in several rounds; return the cost of each."""
    quick = {"quick": -(-counts["quick"] // rounds)}
    ran = [_run(size, {**counts, **quick}), *(_run(size, quick) for _ in range(rounds - 1))]
    load = os.getloadavg()[0]
    taken = {way.name: [runs for seconds in ran if (runs := _taken(way.name, seconds))] for way in WAYS}
    median = {name: statistics.median(one for _, *others in runs for one in others) for name, runs in taken.items()}
    first = {name: statistics.median(run[0] for run in runs) for name, runs in taken.items()}
    ratio = {way.name: median[way.name] / median[OURS[way.isolation]] for way in WAYS}
    return [
        Cost(way.title, way.isolation, size, median[way.name], first[way.name], ratio[way.name], load) for way in WAYS
    ]


def _run(size: int, counts: dict[str, int]) -> dict[str, float]:
    """Run the tests of the ways whose speed has a count; return the seconds of each test."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_ddp.plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"conftest.py": CONFTEST, **modules(size, counts)}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds: dict[str, float] = json.loads(Path(folder, "seconds.json").read_text(encoding="utf-8"))
    return seconds


def _taken(way: str, seconds: dict[str, float]) -> list[float]:
    """Return the seconds of a way's tests, in the order in which they ran."""
    return [value for name, value in seconds.items() if name.partition("::")[0] == f"test_{way}.py"]


def show(costs: list[Cost]) -> None:
    """Print the figures as a table."""
    columns = ("isolation", "way", "ranks", "median per test", "times ours", "first test")
    table = Table(*columns, title="trivial distributed test")
    for before, cost in zip([None, *costs], costs, strict=False):
        if before is not None and (before.isolation, before.world_size) != (cost.isolation, cost.world_size):
            table.add_section()
        ratio = "" if cost.ratio == 1 else f"{cost.ratio:.2f}"
        median, first = f"{1000 * cost.seconds:.1f} ms", f"{cost.first:.2f} s"
        table.add_row(cost.isolation, cost.way, str(cost.world_size), median, ratio, first)
    Console(width=120).print(table)
    for size in WORLD_SIZES:
        median = {cost.way: cost.seconds for cost in costs if cost.world_size == size}
        for ours, bare in BARE.items():
            print(f"{size} ranks: {ours!r} takes {median[ours] / median[bare]:.2f} times {bare!r}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--quick", type=int, default=300, help="tests of each way that takes milliseconds")
    parser.add_argument("--rounds", type=int, default=8, help="in how many runs of their own those take place")
    parser.add_argument("--middling", type=int, default=15, help="tests of each way that takes a fraction of a second")
    parser.add_argument("--slow", type=int, default=3, help="tests of each way that takes seconds")
    options = parser.parse_args()
    counts = {speed: getattr(options, speed) for speed in ("quick", "middling", "slow")}
    costs = [cost for size in WORLD_SIZES for cost in measure(size, counts, options.rounds)]
    show(costs)
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
