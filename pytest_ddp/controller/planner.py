"""Decides what becomes of each distributed test, and which test finds the fixtures of the test before it."""

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_ddp.controller.debugger import NO_TRACE
from pytest_ddp.controller.group_scope import GroupScope
from pytest_ddp.errors import LackError, UsageError
from pytest_ddp.given.items import check_hypothesis
from pytest_ddp.items import is_adopted, is_distributed, request_of
from pytest_ddp.planning.plan import Machine, Plan, Refuse, RunOnRanks, Skip, lack, plan
from pytest_ddp.planning.request import Request
from pytest_ddp.settings import Settings

NO_WINDOWS = (
    "distributed tests do not run on Windows: ranks share sockets, files and signals with pytest as Linux and macOS "
    "have them. Run pytest in WSL (Windows Subsystem for Linux); plain tests run here"
)
_ADOPTED = (
    "the harness of an adopted class (ddp_adopt) is replaced on real ranks only: run the test on another backend than "
    '"sim"'
)
_positions = pytest.StashKey[dict[pytest.Item, int]]()


@dataclass
class Planner:
    """Plans each test by what it asks for, what the user set, and what this machine has.

    `job` are the numbers of the nodes of the job's ranks, if pytest runs in a job.
    """

    settings: Settings
    job: tuple[int, ...] = ()
    _latest: tuple[pytest.Item, Plan] | None = None

    def decide(self, item: pytest.Item) -> RunOnRanks:
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
            try:
                decision = self.plan_request(request_of(item, self.settings))
                refused = is_adopted(item) and isinstance(decision, RunOnRanks) and decision.world.simulated
                self._latest = item, Refuse(_ADOPTED) if refused else decision
            except LackError as error:
                self._latest = item, lack(self.settings, str(error))
            except UsageError as error:
                self._latest = item, Refuse(str(error))
        return self._latest[1]

    def plan_request(self, request: Request) -> Plan:
        """Return what to do with a request; imports torch, to see what this machine has."""
        if sys.platform == "win32":
            return Refuse(NO_WINDOWS)
        return plan(self.settings, request, replace(Machine.detect(), job=self.job))

    def next_on_ranks(
        self, next_item: pytest.Item | None, scope: GroupScope, session: pytest.Session, *, failed: bool
    ) -> pytest.Item | None:
        """Return the next test on the same warm ranks, as far as it is known; None if the ranks must end all fixtures.

        Args:
            next_item: the test that pytest runs next.
            scope: the process group in which the test that ends has run.
            session: the run.
            failed: whether the test that ends has failed; a group that it shares with others is not trusted then.
        """
        items: list[Any] = session.items
        position = _position(next_item, session)
        if session.shouldfail or session.shouldstop or not scope.warm or scope.group.lost:
            return None
        if position is None or (failed and scope.keeper is not None):
            return None
        for later in map(items.__getitem__, range(position, len(items))):  # no copy of the list
            decision = self.plan(later) if is_distributed(later) else None
            if isinstance(decision, RunOnRanks) and decision.isolation == "warm":
                return later if decision.world == scope.world else None
        return None


def _position(item: pytest.Item | None, session: pytest.Session) -> int | None:
    """Return the index of a test among the tests of the run; None if it is not there."""
    if item is None:
        return None
    positions = session.stash.setdefault(_positions, {})
    index = positions.get(item)
    if index is None or session.items[index : index + 1] != [item]:  # not indexed yet, or the list has changed
        positions.clear()
        positions.update((found, place) for place, found in enumerate(session.items))
    return positions.get(item)
