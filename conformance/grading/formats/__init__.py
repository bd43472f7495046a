"""The forms of a report that are written to a file, each with its option of the command line.

To add a form, write a module with a function from reports to text, and add a line to `FORMATS`.
"""

from conformance.grading.formats.json import to_json_text
from conformance.grading.formats.report_file import Format

FORMATS = (Format("--json", to_json_text, "write the report as JSON"),)
