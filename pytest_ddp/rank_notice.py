"""Tells the controller that a phase has raised, before pytest shows the exception with the code around it."""

from collections.abc import Generator

import pytest

from pytest_ddp.messages import Reporting
from pytest_ddp.worker import Rank


class ExceptionNotice:
    """Says so at once: another rank may have failed before, and those that still run are not waited for long.

    What a subtest raises does not come this far, and the test goes on.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Run a phase, and tell of what it raises."""
        __tracebackhide__ = True
        try:
            return (yield)
        except BaseException:
            self._rank.send(Reporting())
            raise

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup
