"""docs/grading.md has every component as its record: `python tests/conformance/test_grading_page.py` writes it."""

import json
import re
from pathlib import Path
from typing import Any

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.registry import COMPONENTS
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report, reports_to_json

PAGE = Path(__file__).parents[2] / "docs" / "grading.md"
_BEGIN, _END, _NOTES = "<!-- components -->\n", "<!-- end of components -->\n", "<!-- notes -->\n"


def page(text: str) -> str:
    """Return the text of the page with its sections about components as they should be; notes of theirs stay."""
    head, _, rest = text.partition(_BEGIN)
    sections, _, tail = rest.partition(_END)
    notes = dict(re.findall(rf"### `(\w+)`\n.*?{_NOTES}(.*?)(?=### |\Z)", sections, flags=re.DOTALL))
    written = "".join(_section(one) + _NOTES + notes.get(one.name, "\n") for one in COMPONENTS.values())
    return head + _BEGIN + written + _END + tail


def _section(one: Component) -> str:
    functions = "\n".join(f"- `{function}`" for function in one.contract.functions)
    core = sum(check.level == "core" for check in one.checks)
    checks = f"{core} core and {len(one.checks) - core} extended checks."
    return f"### `{one.name}`\n\n{one.about}\n\n{functions}\n\n{_aspects(one)}\n{checks}\n\n"


def _aspects(one: Component) -> str:
    """Return a table of what the component promises, with its points."""
    rows = [
        f"| {aspect.name} | {aspect.points:g}{', essential' if aspect.essential else ''} | {len(aspect.checks)} |\n"
        for aspect in one.aspects
    ]
    total = sum(aspect.points for aspect in one.aspects)
    return f"| aspect | points, {total:g} in all | core checks |\n|---|---|---|\n{''.join(rows)}"


def test_the_page_has_every_component_as_its_record_has_it():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text)


def keys(report: dict[str, Any]) -> list[set[str]]:
    """Return the keys of a report, of its environment, of a component, an aspect and a check."""
    (component,) = report["components"].values()
    parts = (report, report["environment"], component, component["aspects"][0], component["checks"][0])
    return [set(part) for part in parts]


def test_the_page_shows_a_report_as_it_is():
    shown = json.loads(PAGE.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0])
    check = CheckReport("gradients_averaged", "core", "failed", "After backward ...")
    aspects = (Aspect("gradients are averaged", 1.5, ("gradients_averaged",), essential=True),)
    report = Report("x", Environment("2", "3", "gloo", "cpu", 4, 7), (ComponentReport("flat_ddp", (check,), aspects),))
    assert {**shown, "submissions": []} == reports_to_json([])
    assert keys(shown["submissions"][0]) == keys(report.to_json())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
