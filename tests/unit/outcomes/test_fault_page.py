"""docs/faults.md says what the fault table says."""

from pathlib import Path

from fault_table import FAULTS, Fault
from plugin_fault_table import TEST_FAULTS, TestFault

from pytest_ddp.outcomes.outcome import Returned

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"
PHASES = {"setup": "error at setup", "call": "failed", "teardown": "error at teardown"}


def rows() -> list[str]:
    return [f"| {fault.what} | {says(fault)} |" for fault in FAULTS] + [
        f"| {fault.what} | {at_phase(fault)} |" for fault in TEST_FAULTS
    ]


def says(fault: Fault) -> str:
    if fault.outcome is Returned:
        return passes(fault.words)
    return f"failed: `... {fault.words.strip()} ...`"


def at_phase(fault: TestFault) -> str:
    return f"{PHASES[fault.phase]}: `... {fault.words} ...`" if fault.phase else passes(fault.words)


def passes(words: str) -> str:
    return f"passed; its output has `{words}`" if words else "passed"


def test_the_page_has_the_rows_of_the_table_in_order():
    shown = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [line for line in shown if not line.startswith("| rank 1")] == rows()
