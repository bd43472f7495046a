"""What a grading found, as a value: the JSON that everything else derives from, and a table for people."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.checks.check import Level
from conformance.judging.run_check import Status
from conformance.scenarios.drawn import Drawn

SCHEMA = "pytest-ddp/report/1"
Verdict: TypeAlias = Literal["passed", "failed", "error", "not_submitted"]
_COLOURS = {"passed": "green", "failed": "red", "error": "magenta"}


@dataclass(frozen=True)
class Environment:
    """Where and how a submission was graded; `core` says that it was held to core checks alone."""

    torch: str
    python: str
    backend: str
    device: str
    world_size: int
    seed: int
    core: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return dict(vars(self))


@dataclass(frozen=True)
class CheckReport:
    """One check's part of a report; `repro` is the path of a script that shows the failure."""

    id: str
    level: Level
    status: Status
    property: str
    points: float
    message: str = ""
    diagnosis: str = ""
    examples: int = 0
    seconds: float = 0.0
    repro: str = ""
    scenario: Drawn | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        plain = {**vars(self), "seconds": round(self.seconds, 3)}
        return {**plain, "scenario": self.scenario.to_json() if self.scenario else None}


@dataclass(frozen=True)
class ComponentReport:
    """One component's part of a report; status and points come from core checks alone.

    `borrowed` names torch's own implementations that it uses; `missing` the functions that keep it from being submitted
    although others of it are there; `alone` says that each run of it had to be in new processes.
    """

    name: str
    checks: tuple[CheckReport, ...]
    submitted: bool = True
    borrowed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    alone: bool = False

    @property
    def core(self) -> list[CheckReport]:
        """The checks that decide."""
        return [check for check in self.checks if check.level == "core"]

    @property
    def status(self) -> Verdict:
        """An error of ours comes before a failure: what was not judged must not be held against a submission."""
        if not self.submitted:
            return "not_submitted"
        found = {check.status for check in self.core}
        return "error" if "error" in found else "failed" if found & {"failed", "not_run"} else "passed"

    @property
    def points(self) -> float:
        """Marks of the core checks that passed."""
        return sum(check.points for check in self.core if check.status == "passed")

    @property
    def max_points(self) -> float:
        """Marks of all core checks, whether they ran or not."""
        return sum(check.points for check in self.core)

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "status": self.status,
            "points": self.points,
            "max_points": self.max_points,
            "borrowed": list(self.borrowed),
            "missing": list(self.missing),
            "alone": self.alone,
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True)
class Report:
    """What the grading of one submission found.

    `stubbed` says what stood in for something absent; `ungraded` why nothing could be looked at, if so.
    """

    submission: str
    environment: Environment
    components: tuple[ComponentReport, ...]
    stubbed: tuple[str, ...] = ()
    ungraded: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0 when all submitted components passed, 1 when any failed, 2 if ungraded, 3 for an error of ours."""
        found = {component.status for component in self.components}
        return 3 if "error" in found else 2 if self.ungraded else 1 if "failed" in found else 0

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "schema": SCHEMA,
            "submission": self.submission,
            "environment": {**self.environment.to_json(), "stubbed": list(self.stubbed)},
            "ungraded": self.ungraded,
            "components": {component.name: component.to_json() for component in self.components},
        }


def show(report: Report, console: Console) -> None:
    """Print the table, then everything that is wrong."""
    console.print(_table(report))
    for line in _not_submitted(report):
        console.print(line)
    for name in report.stubbed:
        console.print(f"[yellow]stubbed[/]: {escape(name)}")
    for component in report.components:
        for name in component.borrowed:
            console.print(f"[yellow]torch's own[/]: {component.name} uses {escape(name)}")
        if component.alone:
            console.print(f"[yellow]in new processes[/]: {component.name} keeps something of earlier runs in a process")
    for component in report.components:
        for check in component.checks:
            if check.status in {"failed", "error"}:
                console.print()
                console.print(_failure(component, check), crop=False)
    console.print()


def _table(report: Report) -> Table:
    seed, ranks = report.environment.seed, report.environment.world_size
    core = ", core checks alone" if report.environment.core else ""
    title = f"{report.submission}   (up to {ranks} ranks, torch {report.environment.torch}, seed {seed}{core})"
    table = Table(title=Text(title, "bold"), title_justify="left")
    table.add_column("component", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("checks that did not pass", overflow="fold")
    for component in report.components:
        if component.submitted:
            verdict = Text(component.status, _COLOURS[component.status])
            points = f"{component.points:g} / {component.max_points:g}"
            table.add_row(component.name, verdict, points, Text(_not_passed(component)))
    return table


def _not_submitted(report: Report) -> list[str]:
    """Name what is not submitted, and what is missing of a component of which something is there."""
    absent = [component for component in report.components if not component.submitted]
    names = ", ".join(component.name for component in absent)
    incomplete = [component for component in absent if component.missing]
    return ([f"[dim]not submitted: {names}[/]"] if names else []) + [
        f"[yellow]missing[/]: {escape(function)}, for {component.name}"
        for component in incomplete
        for function in component.missing
    ]


def _not_passed(component: ComponentReport) -> str:
    """Name the checks that failed, and count those that did not run for it."""
    lines = [
        check.id if check.level == "core" else f"{check.id} (extended)"
        for check in component.checks
        if check.status in {"failed", "error"}
    ]
    waiting = sum(check.status == "not_run" for check in component.checks)
    return "\n".join(lines + ([f"{waiting} not run"] if waiting else []))


def _failure(component: ComponentReport, check: CheckReport) -> RenderableType:
    """Say what is wrong, what is behind it, on which scenario, and how to see it."""
    word = "ERROR OF OURS" if check.status == "error" else "failed" if check.level == "core" else "extended, failed"
    colour = "magenta" if check.status == "error" else "red" if check.level == "core" else "yellow"
    lines: list[RenderableType] = [
        Text.assemble((f"{component.name}: {check.id}", "bold"), "  ", (word, colour)),
        Padding(Text(f"should: {check.property}", "dim"), (0, 0, 0, 2)),
        Padding(Text(check.message), (0, 0, 0, 2)),
    ]
    if check.diagnosis:
        lines.append(Padding(Text(check.diagnosis, "cyan"), (0, 0, 0, 2)))
    if check.scenario:
        lines.append(Padding(Text(f"smallest scenario: {check.scenario!r}", "dim"), (0, 0, 0, 2)))
    if check.repro:
        lines.append(Text(f"  see it yourself: python {check.repro}", no_wrap=True, overflow="ignore"))
    return Group(*lines)
