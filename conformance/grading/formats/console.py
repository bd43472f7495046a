"""The report for people: a table, then everything that is wrong, the cause first."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.grading.events import Event, Reports, SubmissionEnded
from conformance.grading.marks import Mark
from conformance.grading.report import CheckReport, ComponentReport, Report
from conformance.grading.visible import visible

COLOURS = {"passed": "green", "failed": "red", "error": "magenta", "not_gradable": "magenta", "missing": "bold red"}
_WRONG = {"failed", "error", "not_gradable"}


@dataclass
class ConsoleReport:
    """Prints the report of each submission when it ends, or why there is none; a listener that `reports` precedes."""

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
    """Print the title and the table, then every failure; those of extended checks come last, a few lines each."""
    about = report.environment
    core = ", core checks only" if about.core_only else ""
    console.print(Text(visible(report.submission), "bold"))
    console.print(Text(f"up to {about.world_size} ranks, torch {about.torch}, seed {about.seed}{core}"))
    if about.isolation:
        console.print(Text(f"isolation: {about.isolation}"))
    for part in (_table(report), *_not_submitted(report), *notes(report), *_shown_beyond(report)):
        console.print(part)
    failed = [(one, check) for one in report.components for check in one.checks if check.status in _WRONG]
    for component, check in failed:
        if check.level == "core" or check.status == "error":
            console.print()
            console.print(_failure(component, check), crop=False)
    extended = [
        _brief(component, check) for component, check in failed if (check.level, check.status) == ("extended", "failed")
    ]
    if extended:
        worth = " or ".join(dict.fromkeys(component.extended_worth for component in report.components))
        console.print(Text(f"\nExtended checks that failed (they have {worth}):", "bold"))
        console.print(Group(*extended), crop=False)
    console.print()


def _table(report: Report) -> Table:
    table = Table()
    table.add_column("component", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("core checks that did not pass", overflow="fold")
    for component in report.components:
        if component.submitted and component.graded:
            verdict = Text(component.status, COLOURS[component.status])
            points = f"{component.points:g} / {component.max_points:g}"
            if component.status == "not_gradable":
                table.add_row(Text(component.name, "bold"), verdict, "", Text(_lack(component)))
                continue
            table.add_row(Text(component.name, "bold"), verdict, points, Text(_unmarked(component)))
            for mark in component.marks if component.status != "passed" else ():
                table.add_row(*_aspect_row(mark, component))
    return table


def _aspect_row(mark: Mark, component: ComponentReport) -> tuple[Text, Text, str, Text]:
    """Return the cells of an aspect."""
    checks = [check for check in component.core if check.id in mark.aspect.checks]
    verdict = Text(mark.status.replace("_", " "), COLOURS.get(mark.status, ""))
    points = f"{round(mark.points, 2):g} / {mark.aspect.points:g}"
    return Text(f"  {mark.aspect.name}"), verdict, points, Text(_not_passed(checks))


def _not_submitted(report: Report) -> Iterator[Text]:
    """Say which components are not submitted, and what those that are begun lack."""
    absent = [component for component in report.components if component.status == "not_submitted"]
    if absent:
        yield Text(f"Not submitted: {', '.join(component.name for component in absent)}", "dim")
    for component in absent:
        yield from (_note("Missing", f"{name}, for {component.name}") for name in component.missing_functions)


def notes(report: Report) -> Iterator[Text]:
    """Say under which conditions the components ran."""
    yield from (_note("Not on this machine, replaced", name) for name in report.stand_ins)
    for component in report.components:
        yield from (_note("Torch's own", f"{component.name} uses {name}") for name in component.uses_from_torch)
        if component.in_float32:
            yield _note("In float32", f"{component.name} is right there; it does not carry float64")
        if component.new_processes:
            yield _note("In new processes", f"{component.name} fails in a process that ran something before")
        if differs := [check for check in component.checks if check.disagreement]:
            first = f"{differs[0].id}: {differs[0].disagreement.splitlines()[0]}"
            more = f" (and in {len(differs) - 1} more checks)" if len(differs) > 1 else ""
            yield _note("On simulated ranks only", f"{component.name} fails in {first}{more}; real ranks decide")


def _shown_beyond(report: Report) -> Iterator[Text]:
    """Say what checks that passed have shown beyond their property."""
    for component in report.components:
        passed = (check for check in component.checks if check.status == "passed" and check.message)
        yield from (_note(check.id, f"{component.name}: {check.message}") for check in passed)


def _note(title: str, words: str) -> Text:
    return Text.assemble((title, "yellow"), ": ", words)


def _unmarked(component: ComponentReport) -> str:
    """Name what failed and belongs to no aspect; say why points are limited."""
    lines = [check.id for check in component.unmarked if check.status != "passed"]
    missing = [mark.aspect.name for mark in component.marks if mark.status == "missing"]
    limit = [f"at most {component.rules.limit:.0%} without {name!r}" for name in missing[:1]]
    return "\n".join(lines + limit)


def _lack(component: ComponentReport) -> str:
    """Say what this machine lacks for a component."""
    return next(check.message for check in component.core if check.status == "not_gradable")


def _not_passed(checks: Sequence[CheckReport]) -> str:
    """Name the checks that failed, and count those that did not run."""
    lines = [check.id for check in checks if check.status in {"failed", "error"}]
    waiting = sum(check.status == "not_run" for check in checks)
    return "\n".join(lines + ([f"{waiting} not run"] if waiting else []))


def _brief(component: ComponentReport, check: CheckReport) -> RenderableType:
    """Say in a line what is wrong, and how to see it."""
    cause = check.explanation[0].splitlines()[0]
    lines: list[RenderableType] = [_indented(f"{component.name}: {check.id}: {cause}")]
    if check.script:
        lines.append(Text(f"    python {_quoted(check.script)}", "dim", no_wrap=True, overflow="ignore"))
    return Group(*lines)


def _failure(component: ComponentReport, check: CheckReport) -> RenderableType:
    """Say what is wrong, on which scenario, and how to see it."""
    first, *rest = check.explanation
    lines: list[RenderableType] = [
        Text.assemble((f"{component.name}: {check.id}", "bold"), "  ", _outcome(check)),
        _indented(first, "cyan" if check.diagnosis else ""),
        *(_indented(paragraph) for paragraph in rest),
    ]
    if check.scenario:
        lines.append(_indented(f"Smallest scenario: {check.scenario!r}", "dim"))
    if check.without_script:
        lines.append(_indented(f"No script shows it: {check.without_script}; --repro-dir gives another folder"))
    if check.script:
        lines.append(Text(f"  See it yourself: python {_quoted(check.script)}", no_wrap=True, overflow="ignore"))
    return Group(*lines)


def _outcome(check: CheckReport) -> Text:
    if check.status == "not_gradable":
        return Text("not gradable on this machine", "magenta")
    if check.status == "error":
        return Text("error in the grader, not in the submission", "magenta")
    return Text("failed", "red")


def _quoted(path: str) -> str:
    return shlex.quote(visible(path))


def _indented(words: str, style: str = "") -> Padding:
    return Padding(Text(words, style), (0, 0, 0, 2))
