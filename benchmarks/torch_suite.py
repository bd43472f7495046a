"""torch's own distributed tests, on warm ranks and under torch's harness: same outcomes, and the wall time of both.

The module below is as in torch's repository. `ddp_adopt` lets pytest-ddp run all its tests. torch's harness needs about
ten seconds for each test that starts processes, so by default it runs a sample, every so-manieth test; with `--all` it
runs all of them. The outcomes are compared test by test, the times over the tests that both have run. Needs the extra
`bench`.

    python benchmarks/torch_suite.py [--sample 20 | --all] [--world-size 2]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

MODULE = """
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""
ADOPTING = ("-p", "pytest_ddp.plugin", "--ddp-adopt=MultiProcessTestCase", "--ddp-timeout=300")


@dataclass(frozen=True)
class Ran:
    """The tests of one run: seconds of the whole run, and the seconds and the outcome of each test."""

    wall: float
    seconds: dict[str, float]
    outcomes: dict[str, str]


def run(folder: Path, size: int, *args: str) -> Ran:
    """Run tests of the module with pytest."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "BACKEND": "gloo", "WORLD_SIZE": str(size)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml", "-Wignore"]
    start = perf_counter()
    quiet = subprocess.DEVNULL  # torch writes a warning for each process
    subprocess.run([*command, *args], cwd=folder, env=environment, check=False, stdout=quiet, stderr=quiet)
    wall = perf_counter() - start
    cases = list(ET.parse(folder / "junit.xml").iter("testcase"))  # noqa: S314  pytest wrote it
    seconds = {case.attrib["name"]: float(case.attrib["time"]) for case in cases}
    return Ran(wall, seconds, {case.attrib["name"]: outcome(case) for case in cases})


def outcome(case: ET.Element) -> str:
    """Return how a test ended."""
    found = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
    return "passed" if found is None else "skipped" if found.tag == "skipped" else "failed"


def compare(ours: Ran, theirs: Ran) -> int:
    """Print times and outcomes; return how many tests ended differently."""
    print(f"pytest-ddp: {len(ours.outcomes)} tests in {ours.wall:.1f} s: {dict(Counter(ours.outcomes.values()))}")
    print(f"torch: {len(theirs.outcomes)} tests in {theirs.wall:.1f} s: {dict(Counter(theirs.outcomes.values()))}")
    both = sum(ours.seconds[name] for name in theirs.outcomes)
    print(
        f"these {len(theirs.outcomes)} tests: {both:.1f} s on ranks, {sum(theirs.seconds.values()):.1f} s under torch"
    )
    different = [name for name, how in theirs.outcomes.items() if ours.outcomes.get(name) != how]
    for name in different:
        print(f"{name}: {ours.outcomes.get(name)} on ranks, {theirs.outcomes[name]} under torch")
    print(f"{len(theirs.outcomes) - len(different)} tests ended alike, {len(different)} did not")
    return len(different)


def main() -> None:
    """Run both, compare, and exit with 1 if a test ended differently."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=20, help="tests that torch's harness runs")
    parser.add_argument("--all", action="store_true", help="let torch's harness run all tests (half an hour)")
    parser.add_argument("--world-size", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_torch.py").write_text(MODULE, encoding="utf-8")
        ours = run(folder, options.world_size, *ADOPTING)
        names = list(ours.outcomes)
        chosen = names if options.all else names[:: -(-len(names) // options.sample)]
        tests = [f"test_torch.py::TestDistBackendWithSpawn::{name}" for name in chosen]
        different = compare(ours, run(folder, options.world_size, *tests))
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
