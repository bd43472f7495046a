"""The report as Gradescope's `results.json`: one test per aspect, and one per extended check that failed.

The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.grading.formats.markdown import component_line, explained, fenced
from conformance.grading.marks import Mark
from conformance.grading.report import NOT_ENDED, CheckReport, ComponentReport, Report
from conformance.grading.rubric import for_students


def to_gradescope(reports: Sequence[Report]) -> str:
    """Return the text of `results.json`, which students see; the score is that of all components, as far as known."""
    reports = list(map(for_students, reports))
    components = [component for report in reports for component in report.components]
    results = {
        "score": round(sum(report.points for report in reports), 2),
        "execution_time": round(sum(check.seconds for component in components for check in component.checks)),
        "output": "\n\n".join(map(_about, reports)),
        "output_format": "md",
        "test_output_format": "md",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [test for report in filter(_is_judged, reports) for one in report.components for test in _tests(one)],
    }
    return json.dumps(results, indent=2) + "\n"


def _is_judged(report: Report) -> bool:
    """Whether there is anything to say of its components: a grader that was killed before has no tests."""
    return bool(report.not_graded_because) or any(one.graded or one.broken_off for one in report.components)


def _about(report: Report) -> str:
    """Say how the submission was graded, or why it was not."""
    if report.not_graded_because:
        return f"Not graded:\n\n{fenced(report.not_graded_because)}"
    lines = [component_line(component) for component in report.components]
    unfinished = [] if report.finished else [NOT_ENDED]
    return "\n".join([*unfinished, *lines])


def _tests(component: ComponentReport) -> Iterator[dict[str, Any]]:
    if not component.submitted or not (component.graded or component.broken_off):
        score = {"score": 0.0, "max_score": component.max_points, "status": "failed"}
        said = component.why_not_submitted or component.status.replace("_", " ")
        yield {"name": component.name, "output": said, **score}
        return
    for check in component.unmarked:
        if check.status != "passed":
            yield {"name": f"{component.name}: {check.id}", "output": explained(check), "status": "failed"}
    for mark in component.marks:
        yield _aspect(component, mark)
    for check in component.checks:
        if check.level == "extended" and check.status == "failed" and not check.is_hidden:
            name = f"{component.name}: {check.id} (extended, {component.extended_worth})"
            yield {"name": name, "output": explained(check), "status": "failed", "tags": ["extended"]}


def _aspect(component: ComponentReport, mark: Mark) -> dict[str, Any]:
    checks = [check for check in component.core if check.id in mark.aspect.checks]
    return {
        "name": f"{component.name}: {mark.aspect.name}",
        "score": round(mark.points, 2),
        "max_score": mark.aspect.points,
        "status": "passed" if mark.status == "passed" else "failed",
        "output": "\n\n".join(_outcome(check) for check in checks),
        "tags": ["essential"] if mark.aspect.essential else [],
    }


def _outcome(check: CheckReport) -> str:
    status = check.status.replace("_", " ")
    return f"**{check.id}**: {status}" + (f"\n\n{explained(check)}" if check.status != "passed" else "")
