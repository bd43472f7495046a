"""The report as one HTML page that needs nothing besides: for phones and desktops, light and dark."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from conformance.grading.formats.drawing import timeline_svg
from conformance.grading.next_step import begun, next_step
from conformance.grading.report import CheckReport, ComponentReport, Report

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_MOST_SCRIPT_BYTES = 2**16
_IMPORT_ROOTS = re.compile(r"^sys\.path\[:0\] = (.+ else )\[.+\]$", re.MULTILINE)  # of a script without the judge


def marked_up(text: str) -> Markup:
    """Return a text as HTML, with what is in backquotes as code and what is between asterisks emphasised."""
    parts = str(escape(text)).split("`")
    parts[::2] = [re.sub(r"(?<!\w)\*(\S[^*\n]*)\*(?!\w)", r"<em>\1</em>", part) for part in parts[::2]]
    if len(parts) % 2 == 0:  # a backquote that nothing closes
        parts[-2:] = ["`".join(parts[-2:])]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return Markup("".join(parts))  # noqa: S704  escaped


def _title(report: Report) -> str:
    return "Your code" if report.submission == "." else report.submission


_TEMPLATES.filters |= {"code": marked_up, "title_of": _title}


def to_html(reports: Sequence[Report], *, here: bool = True) -> str:
    """Return the reports as a page; whatever comes from a submission is text in it.

    Args:
        reports: what was found.
        here: whether the reader is where it was graded. If not, commands name `.` and no files.
    """
    return _TEMPLATES.get_template("report.html.jinja").render(
        reports=reports,
        next_step=partial(next_step, here=here),
        here=here,
        begun=begun,
        timeline_svg=timeline_svg,
        checks_of=_checks_of,
        extended_of=_extended_of,
        script_of=partial(_script_of, here=here),
    )


def _checks_of(component: ComponentReport, ids: Sequence[str]) -> list[CheckReport]:
    return [check for check in component.core if check.id in ids]


def _extended_of(component: ComponentReport) -> list[CheckReport]:
    """Return the extended checks, the failed ones first."""
    extended = [check for check in component.checks if check.level == "extended"]
    return sorted(extended, key=lambda check: check.status != "failed")


def _script_of(check: CheckReport, *, here: bool) -> str:
    """Return the text of the script that shows a failure; empty if there is none that can be shown."""
    path = Path(check.script or ".")
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size < _MOST_SCRIPT_BYTES else ""
    except OSError:
        return ""
    return text if here else _for_elsewhere(text)


def _for_elsewhere(script: str) -> str:
    """Return a script for the repository's folder on another machine; empty if it reads a file beside it."""
    found = list(_IMPORT_ROOTS.finditer(script))
    given = found[-1] if found else None  # a message before it may look like one
    return script[: given.start(1)] + script[given.end(1) :] if given else ""
