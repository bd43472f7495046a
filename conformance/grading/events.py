"""What happens in a grade, in the order in which it happens, and the reports that follow from it.

Progress, the console and the report files are listeners: functions that are called with each event.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from conformance.grading.report import CheckReport, ComponentReport, Report


@dataclass(frozen=True)
class GradeBegan:
    """The grade begins. `reports` name every submission, component and check of it, none of them graded yet."""

    reports: tuple[Report, ...]


@dataclass(frozen=True)
class SubmissionBegan:
    """The next submission begins: ranks start, and import its adapters."""

    submission: str


@dataclass(frozen=True)
class RanksBegan:
    """The submission has got ranks; `isolation` says what keeps them apart from the rest of the machine."""

    isolation: str


@dataclass(frozen=True)
class ComponentBegan:
    """The checks of a component begin; `checks` is their number."""

    component: str
    checks: int


@dataclass(frozen=True)
class CheckBegan:
    """A check begins."""

    component: str
    check: str


@dataclass(frozen=True)
class CheckEnded:
    """A check passed, failed or could not run."""

    component: str
    report: CheckReport


@dataclass(frozen=True)
class ComponentEnded:
    """The last check of a component ended, or the component is not submitted."""

    report: ComponentReport


@dataclass(frozen=True)
class SubmissionEnded:
    """The last component of a submission ended, or the submission cannot be graded.

    Attributes:
        not_graded_because: why it cannot be graded; empty if it was.
        harness_failed: whether that is a fault of the harness.
        stand_ins: what replaced something that this machine lacks.
    """

    not_graded_because: str = ""
    harness_failed: bool = False
    stand_ins: tuple[str, ...] = ()


Event: TypeAlias = (
    GradeBegan
    | SubmissionBegan
    | RanksBegan
    | ComponentBegan
    | CheckBegan
    | CheckEnded
    | ComponentEnded
    | SubmissionEnded
)
Listener: TypeAlias = Callable[[Event], None]


@dataclass
class Reports:
    """The reports as they stand after the events so far; a listener.

    Attributes:
        reports: one for each submission, also for those that have not begun.
    """

    reports: list[Report] = field(default_factory=list)
    _at: int = -1

    @classmethod
    def of(cls, events: Iterable[Event]) -> list[Report]:
        """Return the reports after all these events."""
        found = cls()
        for event in events:
            found(event)
        return found.reports

    @property
    def current(self) -> Report:
        """The report of the submission that began last."""
        return self.reports[self._at]

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case GradeBegan(reports):
                self.reports = list(reports)
            case SubmissionBegan():
                self._at += 1
            case RanksBegan(isolation):
                environment = replace(self.current.environment, isolation=isolation)
                self.reports[self._at] = replace(self.current, environment=environment)
            case CheckEnded(name, check):
                component = next(one for one in self.current.components if one.name == name)
                self.reports[self._at] = self.current.with_component(component.with_check(check))
            case ComponentEnded(component):
                self.reports[self._at] = self.current.with_component(component)
            case SubmissionEnded():
                self.reports[self._at] = _ended(self.current, event)


def _ended(report: Report, event: SubmissionEnded) -> Report:
    """Return the report of a submission whose grade has ended; a fault of the harness costs it no verdict so far."""
    if event.harness_failed:
        components = tuple(one if one.graded else _not_judged(one) for one in report.components)
        report = replace(report, components=components)
    return replace(
        report,
        finished=True,
        not_graded_because=event.not_graded_because,
        harness_failed=event.harness_failed,
        stand_ins=event.stand_ins,
    )


def _not_judged(component: ComponentReport) -> ComponentReport:
    """Return the report of a component that a fault of the harness kept from its verdict."""
    checks = tuple(replace(check, status="error") if check.status == "not_run" else check for check in component.checks)
    return replace(component, checks=checks, graded=True)
