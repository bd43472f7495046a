"""The report for students: the next thing to do in full, what comes after it in a line each, and the points."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.grading.events import Event, Reports, SubmissionEnded
from conformance.grading.formats.console import COLOURS, notes
from conformance.grading.next_step import begun, in_order, next_step
from conformance.grading.report import CheckReport, ComponentReport, Report

_LINE = 160  # characters of a cause that is told in a line
_WORDS = {"not_submitted": "not started", "not_graded": "not graded yet", "not_gradable": "not judged"}


@dataclass
class StudentReport:
    """Prints what a student does next when the grade ends; a listener that `reports` precedes."""

    reports: Reports
    console: Console = field(default_factory=Console)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, SubmissionEnded):
            show(self.reports.current, self.console)


def show(report: Report, console: Console) -> None:
    """Print the next thing to do, then what comes after it, then the points."""
    for part in (*_next(report), *_later(report), *_points(report)):
        console.print(Group(part), crop=False)


def _next(report: Report) -> Iterator[RenderableType]:
    step = next_step(report)
    yield Text.assemble(("Next: ", "bold yellow"), (step.heading, "bold"))
    first, *rest = step.words
    yield _indented(first, "cyan" if step.check and step.check.diagnosis else "")
    yield from map(_indented, rest)
    if step.check and step.check.scenario and not step.check.script:
        yield _indented(f"Smallest scenario: {step.check.scenario!r}", "dim")
    width = max((len(what) for what, _ in step.commands), default=0) + 2
    for what, command in step.commands:
        yield Text(f"  {what + ':':{width}}{command}", no_wrap=True, overflow="ignore")
    yield Text()


def _later(report: Report) -> Iterator[RenderableType]:
    """Yield a line for each further check that failed, and for each that could not be judged."""
    if report.not_graded_because:
        return
    yield from _list("After that", [(*one, one[1].explanation[0]) for one in in_order(report)[1:]])
    checks = [(component, check) for component in report.components for check in component.checks]
    broken = [(*one, "an error in the grader, not in your code") for one in checks if one[1].status == "error"]
    lacking = [(*one, one[1].message) for one in checks if one[1].status == "not_gradable"]
    yield from _list("Not judged", [*broken, *lacking])


def _list(title: str, lines: Sequence[tuple[ComponentReport, CheckReport, str]]) -> Iterator[RenderableType]:
    if not lines:
        return
    yield Text(title, "bold")
    for component, check, words in lines:
        short = textwrap.shorten(words, _LINE, placeholder=" ...")
        yield Padding(Text.assemble((f"{component.name}: {check.id}: ", "bold"), short), (0, 0, 0, 2), expand=False)
    yield Text()


def _points(report: Report) -> Iterator[RenderableType]:
    """Yield the points of each component that the submission has or begins, their sum, and the conditions."""
    graded = begun(report)
    if not graded or report.not_graded_because:
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    for component in graded:
        verdict = _WORDS.get(component.status, component.status)
        points = _of(component) if component.graded else ""
        table.add_row(component.name, Text(verdict, COLOURS.get(component.status, "dim")), points)
    earned, most = sum(one.points for one in graded if one.graded), sum(one.max_points for one in graded)
    table.add_row("all", "", f"{earned:g} of {most:g} points")
    yield table
    about, core = report.environment, ", core checks only" if report.environment.core_only else ""
    yield Text(f"up to {about.world_size} ranks, seed {about.seed}{core}", "dim")
    yield from notes(report)
    yield Text()


def _of(component: ComponentReport) -> str:
    return f"{component.points:g} of {component.max_points:g} points"


def _indented(words: str, style: str = "") -> Padding:
    return Padding(Text(words, style), (0, 0, 0, 2), expand=False)
