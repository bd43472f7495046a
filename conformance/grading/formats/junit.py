"""The report as JUnit XML, which CI services show as tests: one suite per submission, one case per check."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from conformance.grading.report import CheckReport, ComponentReport, Report

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {"failed": "failure", "error": "error", "not_run": "skipped", "not_gradable": "skipped"}


def to_junit(reports: Sequence[Report]) -> str:
    """Return the reports as JUnit XML. A failed extended check is skipped there: it fails no component."""
    root = ET.Element("testsuites")
    for report in reports:
        _add_suite(root, report)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _add_suite(root: ET.Element, report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name=_text(report.submission))
    about = report.environment
    _add_properties(suite, seed=about.seed, world_size=about.world_size, torch=about.torch, device=about.device)
    if report.not_graded_because:
        case = ET.SubElement(suite, "testcase", classname="submission", name="can be graded")
        ET.SubElement(case, "error", message="not graded").text = _text(report.not_graded_because)
    elif not report.finished:
        case = ET.SubElement(suite, "testcase", classname="submission", name="is graded to its end")
        ET.SubElement(case, "error", message="the grade has not ended").text = "What is not graded yet has no verdict."
    for component in report.components:
        for check in component.checks if component.submitted else ():
            _add_case(suite, component, check)
    cases = suite.findall("testcase")
    counts = {f"{name}s": sum(case.find(name) is not None for case in cases) for name in ("failure", "error")}
    skipped = sum(case.find("skipped") is not None for case in cases)
    seconds = sum(check.seconds for component in report.components for check in component.checks)
    suite.attrib |= {"tests": f"{len(cases)}", "skipped": f"{skipped}", "time": f"{seconds:.3f}"}
    suite.attrib |= {name: f"{count}" for name, count in counts.items()}


def _add_case(suite: ET.Element, component: ComponentReport, check: CheckReport) -> None:
    case = ET.SubElement(suite, "testcase", classname=component.name, name=check.id, time=f"{check.seconds:.3f}")
    marks = [one for one in component.marks if check.id in one.aspect.checks]
    worth = {"aspect": ", ".join(one.aspect.name for one in marks)}
    worth |= {"points": f"{sum(one.points for one in marks):.4g}"} if marks else {}
    worth |= {"max_points": f"{sum(one.aspect.points for one in marks):.4g}"} if marks else {}
    _add_properties(case, level=check.level, examples=check.examples, **worth)
    if check.status == "passed":
        return
    kind = "skipped" if check.level == "extended" and check.status == "failed" else _ELEMENTS[check.status]
    first = check.explanation[0].partition("\n")[0]
    ET.SubElement(case, kind, message=_text(first)).text = _text("\n\n".join(check.explanation))


def _add_properties(element: ET.Element, **values: object) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=_text(str(value)))


def _text(text: str) -> str:
    """Return a text without characters that XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
