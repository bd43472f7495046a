"""What staff get at the end: a table of points, and a page about the class. Neither depends on when a grade ran."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.batch.human_eye import reasons
from conformance.grading.formats.html import marked_up
from conformance.grading.report import SAME_MISTAKE, CheckReport, Report

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined
)
_TEMPLATES.filters["code"] = marked_up
_BARS = 10
_MOST_ASPECTS, _MOST_FAILURES = 20, 30
_ALIKE = SAME_MISTAKE.partition("{}")[0]


@dataclass(frozen=True)
class Graded:
    """One submission at the end.

    Attributes:
        report: what was found, with the points of the rubric; its name is that of the student or team.
        look_at: why a person should look at it; empty for most.
    """

    report: Report
    look_at: tuple[str, ...]

    @classmethod
    def of(cls, report: Report, why: str) -> "Graded":
        """Return a submission with the reasons to look at it; `why` says why it was not graded to its end, if so."""
        return cls(report, tuple(reasons(report, why)))

    @property
    def name(self) -> str:
        """The student or team."""
        return self.report.submission

    @property
    def points(self) -> str:
        """What it has of what it can have."""
        return f"{self.report.points:g} of {self.report.max_points:g}"

    def __str__(self) -> str:
        look_at = f" -- look at it: {'; '.join(self.look_at)}" if self.look_at else ""
        return f"{self.name}: {self.points} points{look_at}"


class Failure(NamedTuple):
    """A failure that submissions share: the same check of the same component, for the same known mistake."""

    component: str
    check: str
    mistake: str  # empty if it is not known


def gradebook(submissions: Sequence[Graded], components: Sequence[str]) -> str:
    """Return a CSV table: a row for each submission, and what a person should look at."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["name", "points", "of", *components, "look at"])
    for one in submissions:
        points = {graded.name: f"{graded.points:g}" for graded in one.report.components if graded.graded}
        sums = f"{one.report.points:g}", f"{one.report.max_points:g}"
        cells = [points.get(name, "") for name in components]
        table.writerow([_plain(one.name), *sums, *cells, _plain("; ".join(one.look_at))])
    return text.getvalue()


def class_page(submissions: Sequence[Graded]) -> str:
    """Return a page about the class: points, the aspects that fail most, similar failures together."""
    return _TEMPLATES.get_template("class.html.jinja").render(
        submissions=submissions,
        shares=_shares([one.report for one in submissions]),
        missed=_missed([one.report for one in submissions]),
        failures=list(_failures(submissions).items())[:_MOST_FAILURES],
    )


def _missed(reports: Sequence[Report]) -> list[tuple[str, str, int, int]]:
    """Return the aspects that most submissions do not have, each with how many of how many do not."""
    missed: Counter[tuple[str, str]] = Counter()
    submitted: Counter[str] = Counter()
    for report in reports:
        for component in report.components:
            if component.status in {"passed", "failed"}:
                submitted[component.name] += 1
                missed.update((component.name, mark.aspect.name) for mark in component.marks if mark.status != "passed")
    most = missed.most_common(_MOST_ASPECTS)
    return [(component, aspect, count, submitted[component]) for (component, aspect), count in most]


def _failures(submissions: Sequence[Graded]) -> dict[Failure, list[str]]:
    """Return who shares a failure, the most frequent first; failures that follow from another one are left out."""
    found: dict[Failure, list[str]] = {}
    for one in submissions:
        for component in one.report.components:
            for check in component.core:
                if check.status == "failed" and not check.diagnosis.startswith(_ALIKE):
                    failure = Failure(component.name, check.id, _mistake(check))
                    found.setdefault(failure, []).append(one.name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _mistake(check: CheckReport) -> str:
    return check.cause or (check.diagnosis.splitlines() or [""])[0]


def _shares(reports: Sequence[Report]) -> list[tuple[str, int]]:
    """Return how many submissions have which tenth of the points."""
    counts = [0] * _BARS
    for report in reports:
        share = report.points / report.max_points if report.max_points else 0.0
        counts[min(int(share * _BARS), _BARS - 1)] += 1
    return [(f"{at * 100 // _BARS} to {(at + 1) * 100 // _BARS} %", count) for at, count in enumerate(counts)]


def _plain(text: str) -> str:
    """Return a cell that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
