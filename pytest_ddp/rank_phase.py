"""Runs one phase of a test with pytest's own functions, so that nothing a test raises gets past its report."""

from functools import partial
from typing import Any, NoReturn

import pytest
from _pytest.runner import call_and_report

from pytest_ddp.exits import as_failure
from pytest_ddp.phase import When


def run_phase(item: pytest.Item, when: When, **arguments: Any) -> pytest.TestReport:
    """Return pytest's report of the phase; raise `Failed` when the test asks for the end of the run."""
    try:
        return call_and_report(item, when, log=False, **arguments)
    except pytest.exit.Exception as wish:
        raise as_failure(wish) from None
    except KeyboardInterrupt as interrupt:  # pytest would stop the session; on a rank it is a failure like any other
        call = pytest.CallInfo.from_call(partial(_raise, interrupt), when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return report


def _raise(error: BaseException) -> NoReturn:
    raise error
