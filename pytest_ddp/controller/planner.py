"""Decides what becomes of a distributed test: when its turn comes, and in advance while the test before it runs."""

import sys
from dataclasses import dataclass

import pytest

from pytest_ddp.controller.debugger import NO_TRACE
from pytest_ddp.errors import UsageError
from pytest_ddp.given.items import check_hypothesis
from pytest_ddp.items import request_of
from pytest_ddp.planning.plan import Machine, Plan, Refuse, Run, Skip, plan
from pytest_ddp.planning.request import Request
from pytest_ddp.settings import Settings

NO_WINDOWS = (
    "distributed tests do not run on Windows: ranks share sockets, files and signals with pytest as Linux and macOS "
    "have them. Run pytest in WSL (Windows Subsystem for Linux); plain tests run here"
)


@dataclass
class Planner:
    """Plans each test by what it asks for, what the user set, and what this machine has."""

    settings: Settings
    _latest: tuple[pytest.Item, Plan] | None = None

    def decide(self, item: pytest.Item) -> Run:
        """Return how to run a test whose turn it is; skip or fail the test if that is the plan."""
        if item.config.getoption("trace", False):
            pytest.fail(NO_TRACE, pytrace=False)
        check_hypothesis(item)
        decision = self.plan(item)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            pytest.fail(decision.reason, pytrace=False)
        return decision

    def plan(self, item: pytest.Item) -> Plan:
        """Return what will be decided; the latest plan is kept, because the test before asks for it too."""
        if self._latest is None or self._latest[0] is not item:
            self._latest = item, self._plan(item)
        return self._latest[1]

    def plan_request(self, request: Request) -> Plan:
        """Return what to do with a request; imports torch, to see what this machine has."""
        if sys.platform == "win32":
            return Refuse(NO_WINDOWS)
        return plan(self.settings, request, Machine.detect())

    def _plan(self, item: pytest.Item) -> Plan:
        try:
            return self.plan_request(request_of(item))
        except UsageError as error:
            return Refuse(str(error))
