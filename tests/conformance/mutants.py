"""Grades every planted bug with several seeds, and writes what catches it into `docs/mutants.md`.

python tests/conformance/mutants.py [SEED ...]; exit code 1 if a bug was missed, or caught first by another check.
"""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from conformance.gradient_mistakes import BY_NAME as GRADIENTS
from conformance.grading import Grading, grade
from conformance.location import locate
from conformance.pool import fork_server, ranks_from
from conformance.report import CheckReport
from conformance.training_mistakes import BY_NAME as TRAININGS

sys.path.insert(0, str(Path(__file__).parents[1] / "targets"))
from bug import Bug
from planted_bugs import BUGS

_DOCS = Path(__file__).parents[2] / "docs"
_WORKERS = 2
_EXAMPLES = 10  # the default of `conformance grade`


def main(seeds: Sequence[int]) -> int:
    """Grade, say which bugs were missed, and write the table if none was."""
    rows, missed = [], 0
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        graded = pool.map(_grade, BUGS, [seeds] * len(BUGS))
        for number, (bug, (examples, faults)) in enumerate(zip(BUGS, graded, strict=True), 1):
            print(f"{number}/{len(BUGS)} {bug}", *faults, sep="\n  ", flush=True)
            rows.append(_row(bug, examples))
            missed += bool(faults)
    print(f"{len(BUGS)} bugs, {len(seeds)} seeds: {missed} not caught by their checks every time")
    if not missed:
        _write(rows)
    return bool(missed)


def _write(rows: list[str]) -> None:
    page = _DOCS / "mutants.md"
    head = page.read_text(encoding="utf-8").partition("\n| component |")[0]
    table = ["| component | in the right code | becomes | caught by | examples | named |", "|---|---|---|---|---|---|"]
    page.write_text("\n".join([head, *table, *rows, ""]), encoding="utf-8")


def _grade(bug: Bug, seeds: Sequence[int]) -> tuple[list[int], list[str]]:
    """Return how many scenarios it took to find the bug, by seed, and what went wrong."""
    examples, faults = [], []
    with tempfile.TemporaryDirectory() as folder, fork_server() as server:
        for name, text in bug.planted().items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        for seed in seeds:
            with ranks_from(server) as ranks:
                report = grade(locate(folder), Grading(seed, 3, (bug.component,), _EXAMPLES), ranks)
            failed = [check for check in report.components[0].checks if check.status not in {"passed", "not_run"}]
            examples += [check.examples for check in failed[:1]]
            faults += _faults(bug, seed, failed)
    return examples, faults


def _faults(bug: Bug, seed: int, failed: list[CheckReport]) -> list[str]:
    if not failed:
        return [f"seed {seed}: passed every check"]
    first, text = failed[0], f"{failed[0].message}\n{failed[0].diagnosis}"
    if first.status == "failed" and first.id == bug.check and bug.words in text:
        return []
    return [f"seed {seed}: {first.id} {first.status}, not {bug.check} and {bug.words!r}: {text}"]


def _row(bug: Bug, examples: list[int]) -> str:
    few, many = min(examples, default=0), max(examples, default=0)
    named = bug.words if bug.words in GRADIENTS or bug.words in TRAININGS else ""
    spread = str(few) if few == many else f"{few}-{many}"
    return f"| {bug.component} | {_code(bug.old)} | {_code(bug.new)} | {bug.check} | {spread} | {named} |"


def _code(text: str) -> str:
    brief = " ".join(text.split())[:60].replace("|", "\\|").replace("`", "'")
    return f"`{brief}`" if brief else "nothing"


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]] or [1, 2, 3, 4, 5]))
