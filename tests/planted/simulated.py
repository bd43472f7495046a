"""Compares simulated with real ranks: whether each planted bug fails its check on both, and how long a scenario takes.

python tests/planted/simulated.py [--component NAME] [--check ID] [--minutes N] [--write]; exit code 1 if a bug that
real ranks show is missed. A bug is held to its check alone, with seed 1 and up to 3 ranks, until a scenario fails; on
simulated ranks all scenarios that they can run. A run that was stopped goes on: the rows of
`docs/simulated-verdicts.md` are what is known.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from bug import Bug
from bugs import BUGS
from evidence import ROOT, parser, state

from conformance.checks.check import NotOffered, Violation
from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers, fork_servers, ranks_from
from conformance.execution.outcome import HarnessError
from conformance.execution.simulated_ranks import SimulatedRanks, can_be_simulated
from conformance.grading.grade import submitted_components
from conformance.judging.hold import Search
from conformance.judging.run_check import draws_of, run_check
from conformance.scenarios.drawn import Drawn
from conformance.submissions.location import locate
from pytest_ddp.errors import LackError
from pytest_ddp.pool.parent_death import die_with

PAGE = ROOT / "docs" / "simulated-verdicts.md"
SUMMARY = ROOT / "docs" / "simulated-grading.md"
_BEGIN, _END = "<!-- ci/mutants --simulate writes this -->", "<!-- until here -->"
_SEED, _WORLD_SIZE, _EXAMPLES = 1, 3, 10
_WORKERS = 2
_AT_A_TIME = 4
_ALONE = "real ranks alone"
_CHECKS_OF_RIGHT_CODE = 8
TRAINED = tuple(name for name, one in COMPONENTS.items() if one.exercise == "conformance.ranks.train:train")
PLANTED = [bug for bug in BUGS if bug.component in TRAINED]
RIGHT = [  # nothing is planted: all scenarios of a check run, and show how long they take
    Bug(name, "", "", check.id) for name in TRAINED for check in COMPONENTS[name].checks[:_CHECKS_OF_RIGHT_CODE]
]


@dataclass(frozen=True)
class Row:
    """What became of one bug.

    Attributes:
        key: of the bug.
        state: of the judge's code.
        component, check: where it is planted, and what is to catch it.
        real, simulated: "failed", "passed", or why there is no verdict.
        scenarios: how many both ran, without the first of each.
        real_ms, simulated_ms: the median of what these took.
    """

    key: str
    state: str
    component: str
    check: str
    real: str
    simulated: str
    scenarios: int = 0
    real_ms: int = 0
    simulated_ms: int = 0

    @classmethod
    def parsed(cls, line: str) -> "Row":
        """Return the row of a line of the page; raise ValueError or TypeError for any other line."""
        *texts, scenarios, real, simulated = [cell.strip("` ") for cell in line.strip("|\n ").split(" | ")]
        return cls(*texts, int(scenarios), int(real), int(simulated))

    def __str__(self) -> str:
        key, of_state, component, check, *rest = map(str, astuple(self))
        return f"| `{key}` | `{of_state}` | `{component}` | `{check}` | {' | '.join(rest)} |"


def read(text: str) -> dict[str, Row]:
    """Return the rows of a page, by the key of their bug."""
    found: dict[str, Row] = {}
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            row = Row.parsed(line)
            found[row.key] = row
    return found


def summary(rows: Iterable[Row], bugs: Sequence[Bug]) -> str:
    """Return a table with a line for each component, and one for all; rows of right code say how fast ranks are."""
    rows, keys = list(rows), {bug.key for bug in bugs}
    names = [name for name in TRAINED if any(bug.component == name for bug in bugs)]
    lines = [_line(name, [row for row in rows if row.component == name], keys) for name in names]
    lines.append(_line("all", rows, keys))
    planted = [len(bugs) if name == "all" else sum(bug.component == name for bug in bugs) for name in [*names, "all"]]
    lines = [line.format(planted=count) for line, count in zip(lines, planted, strict=True)]
    heads = ("component", "bugs", "compared", "found on both", "real ranks alone run the check", "real ranks only")
    heads += ("simulated ranks only", "on neither", "a scenario, real", "simulated")
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines])


def _line(name: str, rows: Sequence[Row], keys: Collection[str]) -> str:
    compared = [row for row in rows if row.key in keys]
    seen = Counter(map(_kind, compared))
    counts = [seen[kind] for kind in ("both", _ALONE, "real", "simulated", "neither")]
    timed = [row for row in rows if row.scenarios and row.key not in keys]
    times = [f"{median(row.real_ms for row in timed):.0f} ms" if timed else ""]
    times += [f"{median(row.simulated_ms for row in timed):.0f} ms" if timed else ""]
    cells = [f"`{name}`" if name != "all" else name, "{planted}", len(compared), *counts, *times]
    return f"| {' | '.join(map(str, cells))} |"


def _kind(row: Row) -> str:
    if row.simulated == _ALONE:
        return _ALONE
    failed = row.real == "failed", row.simulated == "failed"
    return {(True, True): "both", (True, False): "real", (False, True): "simulated"}.get(failed, "neither")


def compare(bugs: Sequence[Bug]) -> list[Row]:
    """Hold each bug to its check on real and on simulated ranks, which come from the same fork servers."""
    with fork_servers() as servers:
        return [_compared(bug, servers) for bug in bugs]


def _compared(bug: Bug, servers: ForkServers) -> Row:
    component = COMPONENTS[bug.component]
    check = next(check for check in component.checks if check.id == bug.check)
    head = bug.key, state(bug.component), bug.component, bug.check
    draws = draws_of(component, check, f"{_SEED}", world_size=_WORLD_SIZE, seed=_SEED, examples=_EXAMPLES)
    drawn = draws.all()
    with tempfile.TemporaryDirectory() as folder, ranks_from(servers) as ranks:
        for name, text in bug.planted().items():
            (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        executor = Executor(ranks, locate(folder), secret=f"{_SEED}")
        submitted_components(executor, (bug.component,))
        if any(getattr(one, "simulated", False) for one in drawn):
            settings = {"world_size": _WORLD_SIZE, "seed": _SEED, "examples": _EXAMPLES}
            return Row(*head, "not run", run_check(component, check, executor, **settings).status)
        real, real_ms = _held(Search(component, check, executor), drawn)
        if not all(can_be_simulated(component, one) for one in drawn):
            return Row(*head, real, _ALONE)
        simulated = executor.on(ranks.other(SimulatedRanks))
        verdict, simulated_ms = _held(Search(component, check, simulated), drawn)
    both = min(len(real_ms), len(simulated_ms)) - 1
    if both < 1:
        return Row(*head, real, verdict)
    return Row(*head, real, verdict, both, *(round(median(ms[1 : both + 1])) for ms in (real_ms, simulated_ms)))


def _held(search: Search, drawn: Sequence[Drawn]) -> tuple[str, list[float]]:
    """Return the verdict, and the milliseconds of each scenario until the first that fails."""
    spent: list[float] = []
    for one in drawn:
        began = time.perf_counter()
        try:
            search.hold(one)
        except Violation:
            return "failed", spent
        except (NotOffered, HarnessError, LackError) as why:
            return f"no verdict ({type(why).__name__})", spent
        spent.append(1000 * (time.perf_counter() - began))
    return "passed", spent


def write(rows: dict[str, Row]) -> None:
    """Write the rows, and the table that sums them up."""
    in_order = [rows[bug.key] for bug in [*PLANTED, *RIGHT] if bug.key in rows]
    head = PAGE.read_text(encoding="utf-8").partition("\n| ")[0].rstrip("\n")
    names = [one.name.replace("_", " ") for one in fields(Row)]
    table = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|", *map(str, in_order)]
    PAGE.write_text("\n".join([head, "", *table, ""]), encoding="utf-8")
    before, _, rest = SUMMARY.read_text(encoding="utf-8").partition(_BEGIN)
    text = f"{before}{_BEGIN}\n\n{summary(in_order, PLANTED)}\n\n{_END}{rest.partition(_END)[2]}"
    SUMMARY.write_text(text, encoding="utf-8")


def main(asked: argparse.Namespace) -> int:
    """Compare what is not known yet, as far as the time allows; return 1 if simulated ranks miss a bug."""
    began, known = time.monotonic(), read(PAGE.read_text(encoding="utf-8"))
    rows = {key: row for key, row in known.items() if row.state == state(row.component)}
    left = [bug for bug in [*RIGHT, *PLANTED] if bug.component in (asked.component or TRAINED) and bug.key not in rows]
    left = [bug for bug in left if asked.check in {None, bug.check}]
    write(rows)
    if asked.write:
        return 0
    pieces = [left[at : at + _AT_A_TIME] for at in range(0, len(left), _AT_A_TIME)]
    with ProcessPoolExecutor(_WORKERS, get_context("spawn"), die_with, (os.getpid(),)) as pool:
        running = {pool.submit(compare, piece) for piece in pieces}
        for future in as_completed(running):
            if future.cancelled():
                continue
            rows |= {row.key: row for row in future.result()}
            write(rows)
            for row in future.result():
                print(f"{len(rows)} known, {time.monotonic() - began:.0f} s: {row}", flush=True)
            if time.monotonic() - began > 60 * asked.minutes:
                pool.shutdown(wait=False, cancel_futures=True)
    return int(any(_kind(row) == "real" for row in rows.values()))


if __name__ == "__main__":
    options = parser("Compare simulated with real ranks on planted bugs, and write docs/simulated-verdicts.md.")
    options.add_argument("--minutes", type=float, default=1e6, help="begin with nothing more after so many minutes")
    sys.exit(main(options.parse_args()))
