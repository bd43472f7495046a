"""Grades every right but unusual way at ten times the default examples, and keeps what passed in `docs/controls.md`.

python tests/conformance/accepted.py [SEED ...]: all ways with the first seed, then with the next. It takes hours: a run
goes on where the last one ended, as long as the judge and the ways are what they were. Exit code 1 if one was accused.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from conformance.execution.pool import fork_servers
from conformance.grading.events import Reports
from conformance.grading.grade import Grading, grade
from pytest_ddp.pool.parent_death import die_with

sys.path.insert(0, str(Path(__file__).parents[1] / "on_ranks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))
from way import CONTROLS, Way, accusations
from ways import WAYS

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "controls.md"
_JUDGE = (*sorted(_ROOT.glob("conformance/**/*.py")), *sorted(_ROOT.glob("tests/conformance/controls/*.py")))
_WORKERS = 2
_WORLD_SIZE = 4
_EXAMPLES = 100
_ROW = re.compile(r"^\| (\w+) \| `(\w+)` \| .* \| ([\d, ]*) \|$", re.MULTILINE)
Accepted = dict[str, set[int]]


def main(seeds: Sequence[int]) -> int:
    """Grade what has not passed yet, and write down each that does at once."""
    accepted = _read()
    ways = sorted(WAYS, key=lambda way: way.component)  # what is asked of one component again is remembered
    left = [(way, seed) for seed in seeds for way in ways if seed not in accepted[str(way)]]
    accused = 0
    with ProcessPoolExecutor(_WORKERS, get_context("spawn"), die_with, (os.getpid(),)) as pool:
        running = {pool.submit(_accusations, way, seed): (way, seed) for way, seed in left}
        for done, future in enumerate(as_completed(running), 1):
            (way, seed), said = running[future], future.result()
            accused += bool(said)
            if not said:
                accepted[str(way)].add(seed)
                _write(accepted)
            print(f"{done} of {len(left)}: {way}, seed {seed}: {said or 'passed'}", flush=True)
    print(f"{len(WAYS)} ways, {len(seeds)} seeds: {accused} accused")
    return bool(accused)


def _accusations(way: Way, seed: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder, fork_servers() as servers:
        for name, text in {"adapters": way.adapters, **CONTROLS}.items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        grading = Grading(seed, _WORLD_SIZE, (way.component,), _EXAMPLES, Path(folder) / "repro")
        (report,) = Reports.of(grade([folder], grading, servers))
        return {"not graded": why} if (why := report.not_graded_because) else accusations(way, report)


def _state() -> str:
    """Return a digest of the judge and of the ways: what passed in another state has to pass again."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _JUDGE)).hexdigest()[:12]


def _read() -> Accepted:
    accepted: Accepted = defaultdict(set)
    text = _PAGE.read_text(encoding="utf-8")
    if f"State: {_state()}." in text:
        for component, name, seeds in _ROW.findall(text):
            accepted[f"{name} as {component}"] = {int(seed) for seed in seeds.split(", ") if seed}
    return accepted


def _write(accepted: Accepted) -> None:
    head = _PAGE.read_text(encoding="utf-8").partition("\nState: ")[0]
    table = ["| component | way | not held to | passed with the seeds |", "|---|---|---|---|"]
    rows = [_row(way, accepted[str(way)]) for way in WAYS]
    _PAGE.write_text("\n".join([head, f"State: {_state()}.", "", *table, *rows, ""]), encoding="utf-8")


def _row(way: Way, seeds: set[int]) -> str:
    lacks = ", ".join(f"`{check}`" for check in sorted(way.lacks))
    return f"| {way.component} | `{way.name}` | {lacks} | {', '.join(map(str, sorted(seeds)))} |"


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]] or [1, 2, 3, 4, 5]))
