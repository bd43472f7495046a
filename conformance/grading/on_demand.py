"""Grades one check at a time, in any order: what tests ask for, one by one."""

from dataclasses import dataclass, field
from functools import partial

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.grading.grade import Grading, failed_as_a_whole, grade_check
from conformance.grading.report import CheckReport
from conformance.reproduction import files


@dataclass
class Grader:
    """Runs each check once, when a test asks for it, after the checks that it requires."""

    executor: Executor
    grading: Grading
    submitted: list[str]
    _known: dict[str, dict[str, CheckReport]] = field(default_factory=dict)

    def verdict(self, component: str, check_id: str) -> CheckReport:
        """Return what became of a check, or the failure of its whole component."""
        failed = partial(failed_as_a_whole, component, self.executor, self.grading)
        report = failed() or self.report(component, check_id)
        return failed() or report

    def report(self, component: str, check_id: str) -> CheckReport:
        """Return what became of a check."""
        known = self._known.setdefault(component, {})
        if check_id not in known:
            check = next(check for check in COMPONENTS[component].checks if check.id == check_id)
            for required in check.requires:
                self.report(component, required)
            if self.grading.library and self.grading.repro_dir:
                files.remove(component, check_id, self.grading.repro_dir)
            known[check_id] = grade_check(component, check, self.executor, self.grading, known)
        return known[check_id]
