"""Grades every planted bug with several seeds, and writes what catches it into `docs/mutants.md`.

With the first seed, a bug is held to every check up to the one that is to catch it; with the others to that one alone,
and to those that it requires.

python tests/conformance/mutants.py [SEED ...]; exit code 1 if a bug was missed, or caught first by another check.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers
from conformance.execution.pool import fork_servers, ranks_from
from conformance.grading.grade import Grading
from conformance.grading.report import CheckReport
from conformance.submissions.location import locate
from pytest_ddp.pool.parent_death import die_with

sys.path.insert(0, str(Path(__file__).parents[1] / "on_ranks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))
from bug import Bug, first_failure, verdict
from planted_bugs import BUGS

_DOCS = Path(__file__).parents[2] / "docs"
_WORKERS = 2
_AT_A_TIME = 8
_WORLD_SIZE = 3
_EXAMPLES = 10  # the default of `conformance grade`
_WIDTH = 60  # characters of code in a cell of the table


@dataclass
class Graded:
    """A bug, how many scenarios it took to find it, by seed, and what went otherwise than it should."""

    bug: Bug
    examples: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def main(seeds: Sequence[int]) -> int:
    """Grade, say which bugs were missed, and write the table if none was."""
    graded: list[Graded] = []
    with ProcessPoolExecutor(_WORKERS, get_context("spawn"), die_with, (os.getpid(),)) as pool:
        for some in pool.map(_grade, batched(BUGS, _AT_A_TIME), repeat(seeds)):
            graded += some
            faults = [f"{one.bug}\n  {fault}" for one in some for fault in one.faults]
            print(f"{len(graded)} of {len(BUGS)} bugs graded", *faults, sep="\n", flush=True)
    missed = sum(bool(one.faults) for one in graded)
    print(f"{len(BUGS)} bugs, {len(seeds)} seeds: {missed} not caught by their checks every time")
    if not missed:
        _write(seeds, [_row(one) for one in graded])
    return bool(missed)


def batched(bugs: Sequence[Bug], size: int) -> Iterator[Sequence[Bug]]:
    """Cut into pieces of at most `size`; each is graded by ranks from the same fork servers."""
    yield from (bugs[at : at + size] for at in range(0, len(bugs), size))


def _write(seeds: Sequence[int], rows: list[str]) -> None:
    page = _DOCS / "mutants.md"
    head = page.read_text(encoding="utf-8").partition("\nSeeds: ")[0]
    head += f"\nSeeds: {', '.join(map(str, seeds))}.\n"
    table = ["| component | in the right code | becomes | caught by | examples | said |", "|---|---|---|---|---|---|"]
    page.write_text("\n".join([head, *table, *rows, ""]), encoding="utf-8")


def _grade(bugs: Sequence[Bug], seeds: Sequence[int]) -> list[Graded]:
    with fork_servers() as server:
        return [_graded(bug, seeds, server) for bug in bugs]


def _graded(bug: Bug, seeds: Sequence[int], server: ForkServers) -> Graded:
    graded = Graded(bug)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in bug.planted().items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        for seed in seeds:
            with ranks_from(server) as ranks:
                grading = Grading(seed, _WORLD_SIZE, (bug.component,), _EXAMPLES)
                executor = Executor(ranks, locate(folder), secret=f"{seed}")
                found = first_failure(executor, grading) if seed == seeds[0] else verdict(bug, executor, grading)
            graded.examples += [found.examples] if found else []
            graded.faults += _faults(bug, seed, found)
    return graded


def _faults(bug: Bug, seed: int, found: CheckReport | None) -> list[str]:
    if found is None:
        return [f"seed {seed}: passed every check"]
    text = f"{found.message}\n{found.diagnosis}"
    if found.status == "failed" and found.id == bug.check and bug.words in text:
        return []
    return [f"seed {seed}: {found.id} {found.status}, not {bug.check} and {bug.words!r}: {text}"]


def _row(graded: Graded) -> str:
    bug, few, many = graded.bug, min(graded.examples), max(graded.examples)
    spread = str(few) if few == many else f"{few}-{many}"
    return f"| {bug.component} | {_code(bug.old)} | {_code(bug.new)} | {bug.check} | {spread} | {bug.words} |"


def _code(text: str) -> str:
    line = " ".join(text.split()).replace("`", "'")
    brief = (line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…").replace("|", "\\|")
    return f"`{brief}`" if brief else "nothing"


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]] or [1, 2, 3, 4, 5]))
