"""Shows on standard error how far the grade of a course is.

A terminal shows a line for each submission that is graded at the moment. Elsewhere, a line is written for each that has
ended.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conformance.batch.gradebook import Graded
from conformance.batch.record import Record

_NAMES = 5  # of those that are graded again
_REFRESHES_PER_SECOND = 1.0  # ranks need the processors


class CourseProgress:
    """Follows the grade of a course; `began` is called from the threads of an executor, the others from one thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._began = time.monotonic()
        self._running: dict[str, tuple[Record, float]] = {}
        self._total = self._left = self._ended = self._looked_at = 0

    def planned(self, total: int, left: int, again: Mapping[str, Sequence[str]]) -> None:
        """Note how many submissions there are, how many are to be graded, and which of them again, and why."""
        self._total, self._left, self._began = total, left, time.monotonic()
        if done := total - left:
            self._say(f"{done} of {total} submissions are graded already")
        for changed, names in again.items():
            shown = ", ".join([*names[:_NAMES], *(["..."] if len(names) > _NAMES else [])])
            self._say(f"{len(names)} are graded again, because {changed} changed: {shown}")

    def began(self, record: Record) -> None:
        """Note that a submission begins."""
        with self._lock:
            self._running[record.name] = record, time.monotonic()

    def ended(self, one: Graded) -> None:
        """Note that a submission has ended."""
        with self._lock:
            self._running.pop(one.name, None)
            self._ended += 1
            self._looked_at += bool(one.look_at)
            self._tell(one)

    def lost(self, record: Record, why: str) -> None:
        """Note that a submission's grader was lost with what ran it, and that its grade goes on elsewhere."""
        with self._lock:
            self._running.pop(record.name, None)
            self._say(f"{record.name} is graded again: {why}")

    def _say(self, words: str) -> None:
        sys.stderr.write(f"conformance: {words}\n")

    def _tell(self, one: Graded) -> None:
        self._say(f"{self._total - self._left + self._ended} of {self._total}: {one}; {self._time_left()}")

    def _time_left(self) -> str:
        """Return in words how long the rest will take, if it takes as long as those that have ended."""
        left = self._left - self._ended
        if not self._ended or not left:
            return "time left is not known yet" if left else "all done"
        seconds = (time.monotonic() - self._began) / self._ended * left
        return f"about {math.ceil(seconds / 60)} min left"


class LiveCourseProgress(CourseProgress):
    """Lines that change in place: one for each submission that is graded at the moment, and one for all."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        rate = _REFRESHES_PER_SECOND
        self.live = Live(self, console=console, refresh_per_second=rate, transient=True, redirect_stdout=False)

    def __rich__(self) -> RenderableType:
        """Return the lines; each is cut where the terminal ends."""
        lines = Table.grid(expand=True, padding=(0, 1))
        lines.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        lines.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        lines.add_column(no_wrap=True, justify="right")
        with self._lock:
            running = sorted(self._running.items())
            ended = f"{self._total - self._left + self._ended} of {self._total} submissions"
            look_at = f", look at {self._looked_at}" if self._looked_at else ""
            left = self._time_left()
        for name, (record, began) in running:
            lines.add_row(Text(name), Text(record.current()), _minutes(time.monotonic() - began))
        lines.add_row(Text(f"{ended}{look_at}", "bold"), Text(left), _minutes(time.monotonic() - self._began))
        return lines

    def _say(self, words: str) -> None:
        self.live.console.print(Text(f"conformance: {words}"))

    def _tell(self, one: Graded) -> None:
        """Leave it to the lines: all submissions are listed at the end."""


@contextmanager
def course_progress() -> Iterator[CourseProgress]:
    """Show progress during the block; give what follows the grade."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield CourseProgress()
        return
    shown = LiveCourseProgress(console)
    with shown.live:
        yield shown


def _minutes(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")
