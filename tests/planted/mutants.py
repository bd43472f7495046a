"""Grades planted bugs by the check that is to catch each, with every seed, and writes `docs/mutants.md`.

python tests/planted/mutants.py [--component NAME] [--check ID] [--write] [SEED ...]; exit code 1 if a bug was missed.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bug import Bug, fault
from bugs import BUGS
from evidence import ROOT, Page, Verdict, collect, parser

from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers, fork_servers, ranks_from
from conformance.grading.grade import Grading, submitted_components
from conformance.submissions.location import locate
from conformance.test_submission import Grader

PAGE = Page(ROOT / "docs" / "mutants.md", ("in the right code", "becomes", "caught by", "said"), BUGS)
_AT_A_TIME = 8
_WORLD_SIZE = 3
_EXAMPLES = 10  # the default of `pytest-ddp-grade`


def judge(pieces: Sequence[tuple[Bug, int]]) -> list[Verdict]:
    """Grade bugs, each with a seed, on ranks from the same fork servers."""
    with fork_servers() as servers:
        return [_judge_one(bug, seed, servers) for bug, seed in pieces]


def _judge_one(bug: Bug, seed: int, servers: ForkServers) -> Verdict:
    with tempfile.TemporaryDirectory() as folder, ranks_from(servers) as ranks:
        for name, text in bug.planted().items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        grading = Grading(seed, _WORLD_SIZE, (bug.component,), _EXAMPLES)
        executor = Executor(ranks, locate(folder), secret=f"{seed}")
        submitted = submitted_components(executor, grading.components)
        report = Grader(executor, grading, submitted).report(bug.component, bug.check)
    return Verdict(report.examples, fault(bug, report))


if __name__ == "__main__":
    asked = parser("Grade planted bugs and write docs/mutants.md.").parse_args()
    sys.exit(bool(collect(PAGE, judge, asked, at_a_time=_AT_A_TIME)))
