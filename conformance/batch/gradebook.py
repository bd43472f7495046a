"""What staff get at the end: a table of points, and a page about the class. Neither depends on when a grade ran."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.grading.report import Report

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined
)
_BARS = 10
_ODD = {"error": "an error of the grader", "not_gradable": "this machine lacks something", "not_graded": "not graded"}


def gradebook(reports: Mapping[str, Report | None], whys: Mapping[str, str], components: Sequence[str]) -> str:
    """Return a CSV table: a row for each submission, by name, and what a person should look at."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["name", "points", "of", *components, "look at"])
    for name, report in sorted(reports.items()):
        points = {one.name: one for one in report.components} if report else {}
        cells = [f"{points[one].points:g}" if one in points and points[one].graded else "" for one in components]
        sums = (report.points, report.max_points) if report else (0.0, 0.0)
        look_at = "; ".join(reasons(report, whys.get(name, "")))
        table.writerow([_plain(name), *(f"{one:g}" for one in sums), *cells, _plain(look_at)])
    return text.getvalue()


def reasons(report: Report | None, why: str) -> list[str]:
    """Return why a person should look at a submission; none for most."""
    if report is None or report.not_graded_because:
        because = report.not_graded_because.strip().splitlines() if report else []
        return [why or " ".join(dict.fromkeys([*because[:1], *because[-1:]])) or "not graded"]
    found = [why] if why else []
    found += [f"{one.name}: {_ODD[one.status]}" for one in report.components if one.status in _ODD]
    found += [f"{one.name} uses {', '.join(one.uses_from_torch)}" for one in report.components if one.uses_from_torch]
    return found


def class_page(reports: Mapping[str, Report | None], whys: Mapping[str, str]) -> str:
    """Return a page about the class: points, the aspects that fail most, failures of one cause together."""
    graded = {name: report for name, report in sorted(reports.items()) if report is not None}
    missed: Counter[tuple[str, str]] = Counter()
    causes: dict[str, list[str]] = {}
    for name, report in graded.items():
        for component in report.components:
            if not (component.submitted and component.graded):
                continue
            missed.update((component.name, mark.aspect.name) for mark in component.marks if mark.status != "passed")
            for check in component.core:
                if check.status == "failed":
                    cause = check.cause or f"{component.name}: {check.id}"
                    causes.setdefault(cause, []).append(name)
    return _TEMPLATES.get_template("class.html.jinja").render(
        graded=graded,
        shares=_shares(list(graded.values())),
        missed=missed.most_common(20),
        causes=sorted(causes.items(), key=lambda item: (-len(set(item[1])), item[0]))[:30],
        look_at={
            name: found for name, report in sorted(reports.items()) if (found := reasons(report, whys.get(name, "")))
        },
    )


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
