"""Shows on standard error how far the grade of a course is: a bar with the time that is left, and a line for each."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from conformance.batch.entries import Entry
from conformance.batch.gradebook import reasons
from conformance.batch.record import Record
from conformance.grading.rubric import Rubric


@contextmanager
def course_progress(total: int, rubric: Rubric) -> Iterator[Callable[[Entry, Record], None]]:
    """Show progress during the block; give the function that is called when a submission has ended."""
    console = Console(stderr=True)
    columns = (TextColumn("graded"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("graded", total=total)

        def ended(entry: Entry, record: Record) -> None:
            sys.stderr.write(f"{summary(entry, record, rubric)}\n")
            bar.advance(task)

        yield ended


def summary(entry: Entry, record: Record, rubric: Rubric) -> str:
    """Return a line about a submission: its points, and why a person should look at it."""
    report = record.pointed(rubric)
    points, possible = (report.points, report.max_points) if report else (0.0, 0.0)
    look_at = "; ".join(reasons(report, record.why))
    return f"{entry.name}: {points:g} of {possible:g} points" + (f" -- look at it: {look_at}" if look_at else "")
