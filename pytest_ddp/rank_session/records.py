"""What a test on a rank records besides the reports of its phases: subtests, warnings, properties of the run."""

from collections.abc import Callable
from typing import TypeVar
from warnings import WarningMessage

import pytest

from pytest_ddp.protocol.phases import RankWarning
from pytest_ddp.pytest_internals import check_property_name

Record = TypeVar("Record")


def taken(records: list[Record]) -> tuple[Record, ...]:
    """Return the records, and remove them from the list."""
    found = tuple(records)
    records.clear()
    return found


class RankRecords:
    """Keeps records until they are sent with an answer to the controller.

    Attributes:
        subtests: the reports of subtests.
        warnings: the warnings of tests.
        suite_properties: names and values of properties of the whole run.
    """

    def __init__(self) -> None:
        self.subtests: list[pytest.TestReport] = []
        self.warnings: list[RankWarning] = []
        self.suite_properties: list[tuple[str, str]] = []

    @pytest.fixture(scope="session")
    def record_testsuite_property(self) -> Callable[[str, object], None]:
        """Record a property of the whole run; replaces pytest's fixture, which writes to the JUnit file."""

        def record(name: str, value: object) -> None:
            check_property_name(name)
            self.suite_properties.append((name, str(value)))

        return record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of subtests; no other reports are logged on a rank."""
        self.subtests.append(report)

    def pytest_warning_recorded(
        self, warning_message: WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Keep the warnings of tests; those of collection the controller reports itself."""
        if when == "runtest":
            category = f"{warning_message.category.__module__}:{warning_message.category.__qualname__}"
            text, file, line = str(warning_message.message), warning_message.filename, warning_message.lineno
            self.warnings.append(RankWarning(text, category, file, line, nodeid, location))
