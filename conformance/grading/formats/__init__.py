"""The forms of a report that are written to a file, each with its option of the command line.

To add a form, write a module with a function from reports to text, and add a line to `FORMATS`.
"""

import json
from collections.abc import Sequence

from conformance.grading.formats.gradescope import to_gradescope
from conformance.grading.formats.html import to_html
from conformance.grading.formats.junit import to_junit
from conformance.grading.formats.markdown import to_markdown
from conformance.grading.formats.report_file import Format
from conformance.grading.report import Report, reports_to_json


def to_json_text(reports: Sequence[Report]) -> str:
    """Return everything that a grade found as JSON text, for other programs."""
    return json.dumps(reports_to_json(reports), indent=2) + "\n"


FORMATS = (
    Format("--json", to_json_text, "write the report as JSON"),
    Format("--html", to_html, "write the report as one HTML page"),
    Format("--markdown", to_markdown, "write the report in Markdown, as for $GITHUB_STEP_SUMMARY"),
    Format("--junit", to_junit, "write the report as JUnit XML"),
    Format("--gradescope", to_gradescope, "write the report as Gradescope's results.json", after_checks=True),
)
