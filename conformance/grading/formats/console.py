"""The report for people: a table, then everything that is wrong, the cause first."""

import sys
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.grading.events import Event, Reports, SubmissionEnded
from conformance.grading.report import CheckReport, ComponentReport, Report

_COLOURS = {"passed": "green", "failed": "red", "error": "magenta"}


@dataclass
class ConsoleReport:
    """Prints the report of each submission when it ends, or why there is none; a listener.

    Attributes:
        reports: the reports, which have taken in an event before this does.
        console: where reports go; standard output.
    """

    reports: Reports
    console: Console = field(default_factory=Console)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if not isinstance(event, SubmissionEnded):
            return
        if event.not_graded_because:
            sys.stderr.write(f"conformance: {event.not_graded_because}\n")
        else:
            show(self.reports.current, self.console)


def show(report: Report, console: Console) -> None:
    """Print the table, then everything that is wrong."""
    console.print(_table(report))
    for line in _not_submitted(report):
        console.print(line)
    for name in report.stand_ins:
        console.print(f"[yellow]stubbed[/]: {escape(name)}")
    for component in report.components:
        for name in component.uses_from_torch:
            console.print(f"[yellow]torch's own[/]: {component.name} uses {escape(name)}")
        if component.new_processes:
            console.print(f"[yellow]in new processes[/]: {component.name} keeps something of earlier runs in a process")
    for component in report.components:
        for check in component.checks:
            if check.status in {"failed", "error"}:
                console.print()
                console.print(_failure(component, check), crop=False)
    console.print()


def _table(report: Report) -> Table:
    seed, ranks = report.environment.seed, report.environment.world_size
    core = ", core checks alone" if report.environment.core_only else ""
    title = f"{report.submission}   (up to {ranks} ranks, torch {report.environment.torch}, seed {seed}{core})"
    table = Table(title=Text(title, "bold"), title_justify="left")
    table.add_column("component", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("checks that did not pass", overflow="fold")
    for component in report.components:
        if component.submitted and component.graded:
            verdict = Text(component.status, _COLOURS[component.status])
            points = f"{component.points:g} / {component.max_points:g}"
            table.add_row(component.name, verdict, points, Text(_not_passed(component)))
    return table


def _not_submitted(report: Report) -> list[str]:
    """Name what is not submitted, and what is missing of a component of which something is there."""
    absent = [component for component in report.components if component.status == "not_submitted"]
    names = ", ".join(component.name for component in absent)
    incomplete = [component for component in absent if component.missing_functions]
    return ([f"[dim]not submitted: {names}[/]"] if names else []) + [
        f"[yellow]missing[/]: {escape(function)}, for {component.name}"
        for component in incomplete
        for function in component.missing_functions
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
