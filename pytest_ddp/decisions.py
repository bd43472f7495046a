"""What becomes of a distributed test: told when its turn comes, and foreseen while the one before it runs."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pytest_ddp.debugger import NO_TRACE
from pytest_ddp.errors import UsageError
from pytest_ddp.given_items import check_hypothesis
from pytest_ddp.items import request_of
from pytest_ddp.plan import Plan, Refuse, Run, Skip
from pytest_ddp.request import Request


@dataclass
class Decisions:
    """Plans tests of pytest by what they ask for.

    Attributes:
        plan: decides what to do with what a test asks for.
    """

    plan: Callable[[Request], Plan]
    _foreseen: tuple[pytest.Item, Plan] | None = None

    def of(self, item: pytest.Item) -> Run:
        """Return how to run a test whose turn it is; skip or fail it where that is decided."""
        if item.config.getoption("trace", False):
            pytest.fail(NO_TRACE, pytrace=False)
        check_hypothesis(item)
        decision = self._plan(item)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            pytest.fail(decision.reason, pytrace=False)
        return decision

    def foresee(self, item: pytest.Item) -> Plan:
        """Return what will be decided of a test to come, which is wanted several times while the one before it runs."""
        if self._foreseen is None or self._foreseen[0] is not item:
            self._foreseen = item, self._plan(item)
        return self._foreseen[1]

    def _plan(self, item: pytest.Item) -> Plan:
        try:
            return self.plan(request_of(item))
        except UsageError as error:
            return Refuse(str(error))
