"""The report in the log of a GitHub Actions step: annotations for what failed, and what a submission says fenced.

A line of the log that begins with `::` is a command. A submission can write such lines into its messages, so none is
obeyed while the report is printed. https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.grading.events import Event, Listener, Reports, SubmissionEnded
from conformance.grading.report import Report

MOST = 10  # GitHub shows no more of a step


def in_actions() -> bool:
    """Whether this is a step of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


@dataclass
class InActions:
    """Lets a listener print inside a fence, then writes annotations; a listener.

    Attributes:
        printed: prints the report of each submission when it ends.
        reports: the reports, which have taken in an event before this does.
    """

    printed: Listener
    reports: Reports

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if not isinstance(event, SubmissionEnded):
            self.printed(event)
            return
        token = secrets.token_hex(16)
        _write(f"::stop-commands::{token}")
        try:
            self.printed(event)
        finally:
            sys.stderr.flush()
            _write(f"::{token}::")
        for line in annotations(self.reports.current):
            _write(line)


def annotations(report: Report) -> Iterator[str]:
    """Yield a command for each core check that failed, ten at most, or for why the submission was not graded."""
    if report.not_graded_because:
        yield annotation("error", report.submission, report.not_graded_because)
        return
    failed = [
        (f"{report.submission}: {component.name}: {check.id}", "\n".join(check.explanation))
        for component in report.components
        for check in component.core
        if check.status in {"failed", "error", "not_gradable"}
    ]
    yield from (annotation("error", *one) for one in failed[:MOST])


def annotation(kind: str, title: str, message: str, *, file: str = "", line: int = 0) -> str:
    """Return the command that shows a message in the summary of a run; with a file, also at a line of it."""
    place = f"file={_property(file)},line={line}," if file else ""
    return f"::{kind} {place}title={_property(title)}::{_escaped(message)}"


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
