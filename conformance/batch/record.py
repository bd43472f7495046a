"""What is known of one submission of a course: a folder that survives whatever ends the grade.

Each run of the grader writes a part, `part-N.json`, after every component; the first part is the plan, in which nothing
is graded. The report is made of all parts.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.batch.folders import remove_tree
from conformance.grading.formats import to_json_text
from conformance.grading.formats.html import to_html
from conformance.grading.formats.report_file import replace_text
from conformance.grading.report import NONE_DEFINED, ComponentReport, Report
from conformance.grading.rubric import Rubric, for_students, regraded
from conformance.grading.visible import visible
from pytest_ddp.errors import UsageError

PACKAGES = "the packages of --with"  # in a key: only what lacks something depends on them
SCRIPTS = "scripts"  # the name of the folder with them
_NOT_GRADED = "not_graded"


@dataclass(frozen=True)
class Record:
    """The folder of one submission.

    Attributes:
        name: of the student or team.
        folder: where its parts, reports and scripts are.
        components: the components of the course, in their order.
    """

    name: str
    folder: Path
    components: tuple[str, ...]

    def begin(self, key: dict[str, str], limit: float = math.inf) -> list[str]:
        """Forget what was found under another key, and a limit that was lower; return what of the key has changed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_tree(self.temporary)
        known = self.folder / "key.json"
        before = read_json(known)
        changed = [name for name in before | key if before.get(name) != key.get(name)]
        forgotten = bool(changed) and (changed != [PACKAGES] or self._lacks_something())
        if forgotten:
            for file in (*self.folder.glob("part-*.json"), self._settled):
                file.unlink(missing_ok=True)
        elif read_json(self._settled).get("limit", math.inf) < limit:
            self._settled.unlink()
        if changed:
            replace_text(known, json.dumps(key, indent=1))
        return [name for name in changed if forgotten and name in before]

    def plan(self, planned: Report) -> None:
        """Note which components are to be graded, unless all of them are known."""
        known = self.report()
        if known is None or len(known.components) < len(self.components):
            replace_text(self.next_part(), to_json_text([replace(planned, submission=self.name)]))

    def next_part(self) -> Path:
        """Return the path that the next run writes to."""
        numbers = [int(path.stem.removeprefix("part-")) for path in self._paths()]
        return self.folder / f"part-{max(numbers, default=-1) + 1:03}.json"

    def settle(self, why: str, advice: str = "", limit: float = math.inf) -> None:
        """Note why this submission is not graded any further, with a limit that is not higher.

        Args:
            why: the reason, also for the student.
            advice: what the staff can do about it.
            limit: the seconds that the last run had, if more of them would help.
        """
        known = {"why": visible(why), "advice": advice}
        replace_text(self._settled, json.dumps(known | ({"limit": limit} if limit < math.inf else {})))

    @property
    def temporary(self) -> Path:
        """A folder for the temporary files of a run; what a killed run left goes when the next one begins."""
        return self.folder / "tmp"

    @property
    def why(self) -> str:
        """Why it is not graded any further, for the staff; empty if nothing says so."""
        settled = read_json(self._settled)
        return ": ".join(filter(None, (settled.get("why"), settled.get("advice"))))

    def report(self) -> Report | None:
        """Return what is known: every component from the part that graded it. None if nothing is known."""
        parts = list(self._parts())
        if not parts:
            return None
        merged = parts[0]
        for part in parts[1:]:
            merged = _merged(merged, part)
        merged = replace(merged, components=self._asked(merged))
        graded = all(one.graded for one in merged.components)
        stopped = "" if graded else str(read_json(self._settled).get("why", ""))
        finished = graded or bool(merged.not_graded_because or stopped)
        return replace(merged, submission=self.name, finished=finished, stopped_because=stopped)

    def known(self) -> Report:
        """Return what is known; raise UsageError if nothing is."""
        report = self.report()
        if report is None:
            raise UsageError(f"{self.folder}: the grade was cut off before it began with this: go on with --resume")
        return report

    def ungraded(self) -> tuple[str, ...]:
        """Return the components that are still to be graded; none if the submission is settled."""
        report = self.report()
        if self.why or (report is not None and report.not_graded_because):
            return ()
        graded = {one.name for one in report.components if one.graded} if report else set()
        return tuple(name for name in self.components if name not in graded)

    def current(self) -> str:
        """Return the component that the last run is at, from the part that it writes; cheap."""
        plain = read_json(max(self._paths(), default=self.folder / "part-000.json"))
        components = (item for one in plain.get("submissions", ()) for item in one["components"].items())
        return next((name for name, one in components if one["status"] == _NOT_GRADED), "")

    def write(self, rubric: Rubric) -> Report:
        """Write the report with the points of a rubric, for staff (JSON) and students (HTML); return the former."""
        pointed = regraded(self.known(), rubric)
        replace_text(self.folder / "report.json", to_json_text([pointed]))
        replace_text(self.folder / "report.html", to_html([for_students(pointed)], here=False))
        return pointed

    @property
    def _settled(self) -> Path:
        return self.folder / "settled.json"

    def _lacks_something(self) -> bool:
        """Whether the machine lacked something that was needed to grade it."""
        report = self.report()
        if report is None or report.not_graded_because:
            return True
        return any(one.status == "not_gradable" for one in report.components)

    def _asked(self, report: Report) -> tuple[ComponentReport, ...]:
        known = {one.name: one for one in report.components}
        return tuple(known[name] for name in self.components if name in known)

    def _paths(self) -> Sequence[Path]:
        return sorted(self.folder.glob("part-*.json"))

    def _parts(self) -> list[Report]:
        plain = (one for path in self._paths() for one in read_json(path).get("submissions", ()))
        return [self._named(Report.from_json(one)) for one in plain]

    def _named(self, part: Report) -> Report:
        """Return a part that calls the submission by its name, and its scripts by where they are now.

        The place where it was graded tells nothing, and the folder of results may have moved since.
        """
        why, scripts = part.not_graded_because.replace(part.submission, self.name), f"/{self.name}/{SCRIPTS}/"
        components = []
        for one in part.components:
            checks = (replace(check, script=self._moved(check.script, scripts)) for check in one.checks)
            components.append(replace(one, checks=tuple(checks)))
        return replace(part, not_graded_because=why, components=tuple(components))

    def _moved(self, script: str, below: str) -> str:
        _, found, path = f"/{script}".partition(below)
        return str(self.folder / SCRIPTS / path) if found else script


def _merged(before: Report, part: Report) -> Report:
    """Return a report with what a later run graded, or with further components that are planned."""
    known = {one.name for one in before.components}
    others = tuple(one for one in part.components if one.name not in known)
    if others and NONE_DEFINED in before.not_graded_because:
        before = _not_submitted(before)
    graded = {one.name: one for one in part.components if one.graded}
    merged = replace(
        before,
        environment=part.environment if part.environment.isolation else before.environment,
        harness_failed=before.harness_failed or part.harness_failed,
        components=(*(graded.get(one.name, one) for one in before.components), *others),
        stand_ins=tuple(sorted({*before.stand_ins, *part.stand_ins})),
    )
    if NONE_DEFINED in part.not_graded_because and any(one.graded for one in before.components):
        return _not_submitted(merged)
    return replace(merged, not_graded_because=part.not_graded_because or before.not_graded_because)


def _not_submitted(report: Report) -> Report:
    """Return the report of a submission that has none of the components that are not graded."""
    components = (one if one.graded else replace(one, submitted=False, graded=True) for one in report.components)
    return replace(report, components=tuple(components), not_graded_because="")


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds; nothing if it is not there, or was being written when the machine went down."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
