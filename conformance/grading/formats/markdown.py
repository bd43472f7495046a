"""The report in Markdown, as for the summary of a step of GitHub Actions, which takes 1 MiB at most."""

import re
import shlex
from collections.abc import Iterator, Sequence

from conformance.grading.report import NOT_ENDED, CheckReport, ComponentReport, Report

_MOST_BYTES = 2**20 - 2**10
_CUT = "\n\nThe report is cut here: GitHub shows 1 MiB at most. `--json` has all of it.\n"


def to_markdown(reports: Sequence[Report]) -> str:
    """Return the reports as Markdown, cut between two failures if they are too long."""
    text = ""
    for piece in (piece for report in reports for piece in _pieces(report)):
        if len((text + piece).encode()) > _MOST_BYTES:
            return text + _CUT
        text += piece
    return text


def fenced(text: str) -> str:
    """Return a text as a block of code, whose end nothing in the text can be."""
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def explained(check: CheckReport) -> str:
    """Return what is wrong."""
    return fenced("\n\n".join(check.explanation))


def component_line(component: ComponentReport) -> str:
    """Return a component, its verdict and its points as an item of a list."""
    verdict = "not ended" if component.broken_off else component.status.replace("_", " ")
    why = f". {component.why_not_submitted}".replace("<", "&lt;") if component.why_not_submitted else ""
    return f"- `{component.name}`: {verdict}, {component.points:g} of {component.max_points:g} points{why}"


def _pieces(report: Report) -> Iterator[str]:
    """Yield the head of a report, then each failure."""
    yield f"## {_inline(report.submission)}\n\n"
    if report.not_graded_because:
        yield f"Not graded:\n\n{fenced(report.not_graded_because)}\n\n"
        return
    yield from _head(report)
    for component in report.components:
        if component.why_not_submitted:
            yield f"{component_line(component)}\n\n"
    for component in report.components:
        for check in component.checks:
            if check.status in {"failed", "error", "not_gradable"}:
                yield _failure(component, check)


def _head(report: Report) -> Iterator[str]:
    about = report.environment
    yield f"Up to {about.world_size} ranks, torch {about.torch}, seed {about.seed}\n\n"
    if about.isolation:
        yield f"Isolation: {about.isolation}\n\n"
    if not report.finished:
        yield f"**{NOT_ENDED}**\n\n"
    yield "| component | verdict | points |\n|---|---|---:|\n"
    for component in report.components:
        if component.submitted or component.why_not_submitted:
            yield from _rows(component)
    yield "\n"


def _rows(component: ComponentReport) -> Iterator[str]:
    points = f"{component.points:g} of {component.max_points:g}"
    yield f"| **`{component.name}`** | {component.status.replace('_', ' ')} | {points} |\n"
    for mark in component.marks if component.submitted and component.status != "passed" else ():
        missing = ", missing" if mark.status == "missing" else ""
        yield f"| {mark.aspect.name}{missing} | | {round(mark.points, 2):g} of {mark.aspect.points:g} |\n"


def _failure(component: ComponentReport, check: CheckReport) -> str:
    extended = f" (extended, {component.extended_worth})" if check.level == "extended" else ""
    head = f"<code>{component.name}: {check.id}</code> {check.status.replace('_', ' ')}{extended}"
    script = f"\n\nSee it yourself: `python {shlex.quote(check.script)}`" if check.script else ""
    return f"<details><summary>{head}</summary>\n\n{explained(check)}{script}\n\n</details>\n\n"


def _inline(text: str) -> str:
    """Return a text without what Markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))
