"""A bug, how it is planted in a right submission, and the first check that fails of it."""

from pathlib import Path
from typing import NamedTuple

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.grading.grade import Grading, grade_check, submitted_components
from conformance.grading.report import CheckReport
from conformance.test_submission import Grader

_TESTS = Path(__file__).parents[1]
_PARTS = _TESTS / "conformance" / "parts"
_EXAMPLE = _TESTS.parent / "examples" / "correct"


def right(component: str) -> dict[str, str]:
    """Return the files of a right submission of a component, by name without suffix."""
    part = _PARTS / f"{component}.py"
    if part.exists():
        return {"adapters": part.read_text(encoding="utf-8")}
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(_EXAMPLE.glob("*.py"))}


class Bug(NamedTuple):
    """Some lines of a right submission go wrong: the first check to fail, and words that it says."""

    component: str
    old: str
    new: str
    check: str
    words: str = ""

    def __str__(self):
        return f"{self.component}: {_brief(self.old, 40)} becomes {_brief(self.new, 90) or 'nothing'}"

    def planted(self) -> dict[str, str]:
        """Return the files of the submission with the bug."""
        texts = right(self.component)
        if not any(self.old in text for text in texts.values()):
            raise ValueError(f"the right {self.component} has no {self.old!r}")
        return {name: text.replace(self.old, self.new) for name, text in texts.items()}


def first_failure(executor: Executor, grading: Grading) -> CheckReport | None:
    """Grade one component until a check fails, as a whole grading would."""
    (component,) = submitted_components(executor, grading.components)
    before: dict[str, CheckReport] = {}
    for check in COMPONENTS[component].checks:
        before[check.id] = report = grade_check(component, check, executor, grading, before)
        if report.status not in {"passed", "not_run"}:
            return report
    return None


def verdict(bug: Bug, executor: Executor, grading: Grading) -> CheckReport:
    """Hold a submission to the check that is to catch the bug, and before to those that it requires."""
    submitted = submitted_components(executor, grading.components)
    return Grader(executor, grading, submitted).report(bug.component, bug.check)


def _brief(code: str, length: int) -> str:
    return " ".join(code.split())[:length].strip()
