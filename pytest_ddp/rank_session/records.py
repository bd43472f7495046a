"""What a test on a rank records besides the reports of its phases: subtests, warnings, properties of the run."""

from collections.abc import Callable
from warnings import WarningMessage

import pytest

from pytest_ddp.protocol.phases import RankWarning
from pytest_ddp.pytest_internals import check_property_name


class RankRecords:
    """Keeps records until they are sent with an answer to the controller."""

    def __init__(self) -> None:
        self._subtests: list[pytest.TestReport] = []
        self._warnings: list[RankWarning] = []
        self._suite_properties: list[tuple[str, str]] = []

    def take_subtests(self) -> list[pytest.TestReport]:
        """Return the reports of the subtests since the last call."""
        taken, self._subtests = self._subtests, []
        return taken

    def take_warnings(self) -> tuple[RankWarning, ...]:
        """Return the warnings since the last call."""
        taken, self._warnings = tuple(self._warnings), []
        return taken

    def take_suite_properties(self) -> tuple[tuple[str, str], ...]:
        """Return the properties of the whole run, name and value, since the last call."""
        taken, self._suite_properties = tuple(self._suite_properties), []
        return taken

    @pytest.fixture(scope="session")
    def record_testsuite_property(self) -> Callable[[str, object], None]:
        """Record a property of the whole run; replaces pytest's fixture, which writes to the JUnit file."""

        def record(name: str, value: object) -> None:
            check_property_name(name)
            self._suite_properties.append((name, str(value)))

        return record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of subtests; no other reports are logged on a rank."""
        self._subtests.append(report)

    def pytest_warning_recorded(
        self,
        warning_message: WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Keep the warnings of tests; those of collection the controller reports itself."""
        if when == "runtest":
            category = f"{warning_message.category.__module__}:{warning_message.category.__qualname__}"
            text, file, line = str(warning_message.message), warning_message.filename, warning_message.lineno
            self._warnings.append(RankWarning(text, category, file, line, when, nodeid, location))
