"""Grades right but unusual code at ten times the default scenarios, and writes what passed into `docs/controls.md`.

python tests/planted/accepted.py [--component NAME] [--examples N] [SEED ...]; exit code 1 if a check failed wrongly.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from evidence import ROOT, Page, Verdict, collect, parser
from way import CONTROLS, Way, accusations
from ways import WAYS

from conformance.execution.fork_servers import fork_servers
from conformance.grading.events import Reports
from conformance.grading.grade import Grading, grade

PAGE = Page(ROOT / "docs" / "controls.md", ("way", "not held to"), WAYS)
_WORLD_SIZE = 4


def judge(pieces: Sequence[tuple[Way, int]], examples: int) -> list[Verdict]:
    """Grade ways, each with a seed, with every check of their component."""
    return [_judge_one(way, seed, examples) for way, seed in pieces]


def _judge_one(way: Way, seed: int, examples: int) -> Verdict:
    with tempfile.TemporaryDirectory() as folder, fork_servers() as servers:
        for name, text in {"adapters": way.adapters, **CONTROLS}.items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        grading = Grading(seed, _WORLD_SIZE, (way.component,), examples)
        (report,) = Reports.of(grade([folder], grading, servers))
    accused = {"not graded": why} if (why := report.not_graded_because) else accusations(way, report)
    return Verdict(examples, "".join(f"\n  {check}: {message}" for check, message in accused.items()))


if __name__ == "__main__":
    options = parser("Grade right but unusual code and write docs/controls.md.")
    options.add_argument("--examples", type=int, default=100, help="scenarios per check")
    asked = options.parse_args()
    found = collect(PAGE, partial(judge, examples=asked.examples), asked, at_a_time=1, at_least=asked.examples)
    sys.exit(bool(found))
