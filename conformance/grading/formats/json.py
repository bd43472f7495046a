"""The report as JSON: everything that a grade found, for other programs."""

import json
from collections.abc import Sequence

from conformance.grading.report import Report, reports_to_json


def to_json_text(reports: Sequence[Report]) -> str:
    """Return the JSON text."""
    return json.dumps(reports_to_json(reports), indent=2) + "\n"
