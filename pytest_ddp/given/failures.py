"""The failing examples of a Hypothesis test: an exception type for each bug, and one pytest report of all bugs.

Hypothesis tells bugs apart by the type of the exception.
"""

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import details, failure_origin, failures, headline, is_consequence
from pytest_ddp.outcomes.hang_diagnosis import caused_by_peer_loss
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.phases import ExampleReport
from pytest_ddp.pytest_internals import (
    ExceptionChainRepr,
    ExceptionRepr,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)
from pytest_ddp.reporting.exception_info import loaded_type
from pytest_ddp.reporting.merge import PhaseResult, merge, text_entry


class ExampleFailed(PytestDDPError):  # noqa: N818  as RankFailure
    """An example failed; base of the types that `example_failure` makes.

    Attributes:
        outcomes: one per rank, in rank order.
        world: the world of the test.
    """

    def __init__(self, outcomes: Sequence[Outcome], world: World) -> None:
        Exception.__init__(self)  # the other base class may be any exception, and require arguments
        self.outcomes = tuple(outcomes)
        self.world = world

    def __str__(self) -> str:
        if not failures(self.outcomes):
            return "at least one rank skipped this example, and another did not"
        return "\n".join([headline(self.outcomes, self.world), *details(self.outcomes)])


def example_failure(outcomes: Sequence[Outcome], reports: Mapping[int, ExampleReport], world: World) -> ExampleFailed:
    """Return the exception for an example that failed, or that only a part of the ranks skipped."""
    found = failures(outcomes)
    if not found or is_consequence(found[0]):
        return _bug_type("the ranks disagree", "")(outcomes, world)
    # The type must be the same whenever the bug is found, so it follows the lowest rank, not the first in time.
    own = [outcome for outcome in found if not is_consequence(outcome)]
    root = min(own, key=lambda outcome: (caused_by_peer_loss(outcome), outcome.rank))
    report = reports.get(root.rank, ExampleReport())
    return _bug_type(report.origin or failure_origin(root), report.kind)(outcomes, world)


@functools.cache
def _bug_type(origin: str, kind: str) -> type[ExampleFailed]:
    """Return the type of all failures with this origin; it also derives from the exception type on the rank."""
    module, _, qualname = kind.partition(":")
    name = qualname.rpartition(".")[2] or ExampleFailed.__name__
    attributes = {"__doc__": origin, "__module__": module or __name__}
    raised = loaded_type(module, qualname, Exception)
    if raised is not None:
        with suppress(Exception):  # a foreign class may refuse to be derived from
            bug = type(name, (ExampleFailed, raised), attributes)
            bug((), World(1))
            return bug
    return type(name, (ExampleFailed,), attributes)


@dataclass(frozen=True)
class Bugs:
    """The bugs that Hypothesis found: a failing example for each, and its notes on all of them."""

    examples: Sequence[ExampleFailed]
    notes: Sequence[str] = ()


def report_bugs(report: pytest.TestReport, bugs: Bugs, config: pytest.Config) -> None:
    """Turn the controller's `report` into a report of every bug, each with its example."""
    reports = [_report_of(bug, report, config) for bug in bugs.examples]
    shown = [one for one in reports if one.failed] or reports[:1]  # the test is xfailed if each bug is
    report.outcome = shown[0].outcome
    if hasattr(shown[0], "wasxfail"):
        report.wasxfail = shown[0].wasxfail
    report.longrepr = shown[0].longrepr if len(shown) == 1 else _chained(shown, bugs.notes)


def _report_of(bug: ExampleFailed, report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    one = copy(report)
    merge(one, PhaseResult.of(bug.outcomes, bug.world), config)
    _add_notes(one, [line for note in getattr(bug, "__notes__", []) for line in note.splitlines()])
    return one


def _add_notes(report: pytest.TestReport, lines: list[str]) -> None:
    """Add lines where pytest shows the notes of an exception."""
    if isinstance(report.longrepr, ExceptionRepr):
        entry: Any = report.longrepr.reprtraceback.reprentries[-1]
        native = entry.style == "native"
        entry.lines = [*entry.lines, *(f"{line}\n" if native else f"E       {line}" for line in lines)]
    elif report.failed:
        report.longrepr = "\n".join([str(report.longrepr), *lines])


def _chained(reports: Sequence[pytest.TestReport], notes: Sequence[str]) -> ExceptionChainRepr:
    """Return the exceptions of all reports as one chain, with the notes on top."""
    parts = [_as_exception(report) for report in reports]
    titles = [f"--- failure {number} of {len(parts)}: ---" for number in range(2, len(parts) + 1)]
    chain: list[tuple[ReprTraceback, ReprFileLocation | None, str | None]] = []
    for part, next_title in zip(parts, [*titles, None], strict=True):
        causes = part.chain[:-1] if isinstance(part, ExceptionChainRepr) else []
        chain += [*causes, (part.reprtraceback, part.reprcrash, next_title)]
    chained = ExceptionChainRepr(chain)
    first = chain[0][0]
    first.reprentries = [text_entry("\n".join(notes)), *first.reprentries]
    for part in parts:
        for section in part.sections:
            chained.addsection(*section)
    if chained.reprcrash is not None:
        chained.reprcrash = copy(chained.reprcrash)
        chained.reprcrash.message = f"{len(parts)} distinct failures, the last: {chained.reprcrash.message}"
    return chained


def _as_exception(report: pytest.TestReport) -> ExceptionRepr:
    if isinstance(report.longrepr, ExceptionRepr):
        return report.longrepr
    text = ReprTraceback([text_entry(report.longreprtext)], None, "long")
    return ReprExceptionInfo(reprcrash=None, reprtraceback=text)
