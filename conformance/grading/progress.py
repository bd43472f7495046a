"""Shows on standard error how far a grade is: on a terminal the check that runs, elsewhere a line per component.

A student sees verdicts as soon as they are there: a line for each core check that fails, and for each component.
"""

import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conformance.grading import events

_CAUSE = 120  # characters of the cause of a failure
_REFRESHES_PER_SECOND = 2.0  # ranks need the processors


_STARTING = "starting rank processes"


def announce() -> None:
    """Say on a terminal what takes the first seconds, before torch is imported; progress replaces the line."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        sys.stderr.write(f"{_STARTING} ...\r")
        sys.stderr.flush()


@contextmanager
def progress(*, verdicts: bool = False) -> Iterator[events.Listener]:
    """Show progress, and verdicts at once if so asked, from now until the end of the block; give its listener."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield partial(write_lines, verdicts=verdicts)
        return
    shown = LiveProgress(console, verdicts=verdicts)
    with shown.live:
        yield shown


def write_lines(event: events.Event, *, verdicts: bool = False) -> None:
    """Write one line when a submission begins, and one when a submitted component ends; a listener."""
    match event:
        case events.CheckEnded() if verdicts and (said := _verdict(event)):
            sys.stderr.write(f"conformance: {said}\n")
        case events.SubmissionBegan():
            sys.stderr.write(f"conformance: grading {event.submission}\n")
        case events.ComponentEnded(report) if report.submitted:
            sys.stderr.write(f"conformance: {_verdict(event)}\n")


def _verdict(event: events.CheckEnded | events.ComponentEnded) -> str:
    """Return a line about a core check that failed, or about a submitted component; else nothing."""
    match event:
        case events.CheckEnded(component, check) if check.level == "core" and check.status == "failed":
            cause = check.explanation[0].partition("\n")[0]
            return f"{component}: {check.id} failed: {textwrap.shorten(cause, _CAUSE, placeholder=' ...')}"
        case events.ComponentEnded(report) if report.submitted:
            return f"{report.name} {report.status}, {report.points:g} of {report.max_points:g} points"
    return ""


@dataclass
class _Timed:
    """Something that is going on, and since when."""

    words: str
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> str:
        """Return minutes and seconds."""
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        return f"{minutes}:{seconds:02}"


class LiveProgress:
    """Lines that change in place: the submission, its component, its check, and how long they take; a listener.

    The lines are gone between the end of a submission and the beginning of the next: its report is printed there.
    """

    def __init__(self, console: Console, *, verdicts: bool = False) -> None:
        rate = _REFRESHES_PER_SECOND
        self.live = Live(self, console=console, refresh_per_second=rate, transient=True, redirect_stdout=False)
        self._verdicts = verdicts
        self._grade = _Timed(_STARTING)
        self._component: events.ComponentBegan | None = None
        self._check: _Timed | None = None
        self._submissions = self._begun = self._ended = self._failed = 0

    def __call__(self, event: events.Event) -> None:
        """Take in one event."""
        if (
            self._verdicts
            and isinstance(event, events.CheckEnded | events.ComponentEnded)
            and (said := _verdict(event))
        ):
            self.live.console.print(Text(said))
        match event:
            case events.GradeBegan(reports):
                self._submissions = len(reports)
            case events.SubmissionBegan(name):
                self._begun += 1
                place = f"({self._begun} of {self._submissions}) " if self._submissions > 1 else ""
                self._grade.words = f"grading {place}{name}"
                self.live.start()
            case events.ComponentBegan():
                self._component, self._ended, self._failed = event, 0, 0
            case events.CheckBegan():
                self._check = _Timed(event.check)
            case events.CheckEnded():
                self._ended += 1
                self._failed += event.report.status == "failed"
            case events.ComponentEnded():
                self._component = self._check = None
            case events.SubmissionEnded():
                self.live.stop()

    def __rich__(self) -> RenderableType:
        """Return the lines; each is cut where the terminal ends."""
        lines = Table.grid(expand=True, padding=(0, 1))
        lines.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        lines.add_column(no_wrap=True, justify="right")
        lines.add_row(Text(self._grade.words, "bold"), self._grade.elapsed)
        if began := self._component:
            at, failed = min(self._ended + 1, began.checks), f", {self._failed} failed" if self._failed else ""
            lines.add_row(Text(f"  {began.component}: check {at} of {began.checks}{failed}"), "")
        if self._check:
            lines.add_row(Text(f"    {self._check.words}"), self._check.elapsed)
        return lines
