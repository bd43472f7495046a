"""The faults that need a test's whole life: fixtures, teardown, pytest's own ways out."""

import pytest
from hanging import ended_when, hangs
from plugin_fault_table import TEST_FAULTS, TestFault


class Reports:
    """Keeps every report of a run."""

    def __init__(self) -> None:
        self.found: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found.append(report)

    def of(self, module: str, test: str) -> list[pytest.TestReport]:
        return [report for report in self.found if report.nodeid == f"{module}.py::{test}"]


def check(fault: TestFault, reports: list[pytest.TestReport]) -> None:
    failed = {report.when: report for report in reports if report.failed}
    assert list(failed) == ([fault.phase] if fault.phase else [])
    if fault.phase:
        first = failed[fault.phase].longreprtext.partition("\n")[0]
        assert first.startswith("rank 1 of 2 (gloo, cpu) ")
        assert fault.words in first
    else:
        assert fault.words in "".join(text for report in reports for _, text in report.sections)


def test_every_fault_is_reported_at_its_phase_and_the_next_test_is_unharmed(pytester):
    modules = {f"test_fault_{number:02}": fault for number, fault in enumerate(TEST_FAULTS)}
    pytester.makepyfile(**{name: fault.module() for name, fault in modules.items()})
    reports = Reports()
    with ended_when(lambda ranks: all(hangs(rank) or rank.collectives_entered for rank in ranks)):
        pytester.inline_run("-p", "no:cacheprovider", plugins=[reports])
    for name, fault in modules.items():
        check(fault, reports.of(name, "test_it"))
        assert [report.outcome for report in reports.of(name, "test_next")] == ["passed"] * 3, f"after: {fault.what}"
