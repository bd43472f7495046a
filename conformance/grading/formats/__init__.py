"""The forms of a report that are written to a file, each with its option of the command line.

To add a form, write a module with a function from reports to text, and add a line to `FORMATS`.
"""

import json
from collections.abc import Sequence

from conformance.grading.formats.report_file import Format
from conformance.grading.report import Report, reports_to_json


def to_json_text(reports: Sequence[Report]) -> str:
    """Return everything that a grade found as JSON text, for other programs."""
    return json.dumps(reports_to_json(reports), indent=2) + "\n"


FORMATS = (Format("--json", to_json_text, "write the report as JSON"),)
