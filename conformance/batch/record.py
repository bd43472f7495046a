"""What is known of one submission of a course: a folder that survives whatever ends the grade.

Each run of the grader writes a part, `part-N.json`, after every component. The report is made of all parts.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.grading.formats import to_json_text
from conformance.grading.formats.html import to_html
from conformance.grading.formats.report_file import replace_text
from conformance.grading.report import NONE_DEFINED, Report
from conformance.grading.rubric import Rubric, regraded


@dataclass(frozen=True)
class Record:
    """The folder of one submission.

    Attributes:
        name: of the student or team.
        folder: where its parts, reports and scripts are.
    """

    name: str
    folder: Path

    def begin(self, key: str) -> None:
        """Forget what was found of other content, or with other options."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / "key.txt"
        if not known.is_file() or known.read_text(encoding="utf-8") != key:
            for file in self.folder.glob("part-*.json"):
                file.unlink()
            (self.folder / "why.txt").unlink(missing_ok=True)
            replace_text(known, key)

    def next_part(self) -> Path:
        """Return the path that the next run writes to."""
        return self.folder / f"part-{len(self._parts()):03}.json"

    def settle(self, why: str) -> None:
        """Note why this submission is not graded any further."""
        replace_text(self.folder / "why.txt", why)

    @property
    def why(self) -> str:
        """Why it is not graded any further; empty if nothing says so."""
        path = self.folder / "why.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def report(self) -> Report | None:
        """Return what is known: every component from the part that graded it."""
        merged: Report | None = None
        for part in self._parts():
            merged = part if merged is None else _merged(merged, part)
        if merged is None:
            return None
        return replace(merged, finished=merged.finished or bool(self.why))

    def ungraded(self, components: tuple[str, ...]) -> tuple[str, ...]:
        """Return the components that are still to be graded; none if the submission is settled."""
        report = self.report()
        if self.why or (report is not None and report.not_graded_because):
            return ()
        graded = {one.name for one in report.components if one.graded} if report else set()
        return tuple(name for name in components if name not in graded)

    def pointed(self, rubric: Rubric) -> Report | None:
        """Return what is known, with the points of a rubric."""
        report = self.report()
        return None if report is None else regraded(replace(report, submission=self.name), rubric)

    def write(self, rubric: Rubric) -> None:
        """Write the report with the points of a rubric, as JSON and HTML."""
        pointed = self.pointed(rubric)
        if pointed is not None:
            replace_text(self.folder / "report.json", to_json_text([pointed]))
            replace_text(self.folder / "report.html", to_html([pointed]))

    def _parts(self) -> list[Report]:
        found = []
        for path in sorted(self.folder.glob("part-*.json")):
            plain = json.loads(path.read_text(encoding="utf-8"))
            found += [Report.from_json(one) for one in plain["submissions"]]
        return found


def _merged(before: Report, part: Report) -> Report:
    """Return a report with what a later run graded."""
    graded = {one.name: one for one in part.components if one.graded}
    components = tuple(graded.get(one.name, one) for one in before.components)
    because = part.not_graded_because or before.not_graded_because
    if NONE_DEFINED in part.not_graded_because and any(one.graded for one in before.components):
        components = tuple(one if one.graded else replace(one, submitted=False, graded=True) for one in components)
        because = before.not_graded_because
    return replace(
        before,
        components=components,
        finished=all(one.graded for one in components) or bool(because),
        not_graded_because=because,
        stand_ins=tuple(sorted({*before.stand_ins, *part.stand_ins})),
    )
