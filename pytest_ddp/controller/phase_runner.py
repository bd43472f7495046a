"""Runs setup, call and teardown of distributed tests on their ranks, one phase at a time.

pytest's own loop in the controller comes to a phase, the ranks run it, and every rank answers. A rank goes on to the
next phase only when all ranks have answered: `RunTest` makes them set the test up, `Proceed` opens the gate to the call
and to teardown.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_ddp.controller.debugger import Debugger
from pytest_ddp.controller.group_scope import GroupScope, GroupScopes
from pytest_ddp.controller.planner import Planner
from pytest_ddp.errors import LaunchError
from pytest_ddp.given.failures import Bugs
from pytest_ddp.given.items import ExampleRanks, is_given
from pytest_ddp.items import node_id
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Outcome, Raised
from pytest_ddp.planning.request import draws
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.phases import EXIT_KIND, ItemId, Proceed, RunTest, When
from pytest_ddp.protocol.targets import PROCEED, RUN_TEST
from pytest_ddp.reporting.merge import PhaseResult

taken_over_key = pytest.StashKey[bool]()
world_key = pytest.StashKey[World]()
result_key = pytest.StashKey[PhaseResult]()
bugs_key = pytest.StashKey[Bugs]()


@dataclass
class PhaseRunner:
    """Takes one distributed test after the other through its phases.

    Attributes:
        planner: decides what becomes of each test.
        scopes: gives each test the process group that it runs in.
        new_shared_path: gives a folder name for each test.
        debugger: shows a failure in a rank's debugger.
        next_item: the test that pytest runs after the one at hand.
    """

    planner: Planner
    scopes: GroupScopes
    new_shared_path: Callable[[], str]
    debugger: Debugger | None = None
    next_item: pytest.Item | None = None
    _scope: GroupScope | None = None
    _test: RunTest | None = None
    _timeout: float = 0.0
    _failed: bool = False
    _simulation: dict[str, Any] = field(default_factory=dict)

    def take_over(self, item: pytest.Item) -> None:
        """Let the phases of a test run on ranks instead of here."""
        item.stash[taken_over_key] = True
        item.setup = partial(self._setup, item)  # type: ignore[method-assign]
        item.runtest = partial(self._call, item)  # type: ignore[method-assign]
        item.teardown = lambda: None  # type: ignore[method-assign]  # a TestCase would miss what its setup makes

    def close(self) -> None:
        """Give up the ranks; a test that is still set up then has nothing left to tear down."""
        self._scope = None
        self.scopes.close()

    def _setup(self, item: pytest.Item) -> None:
        run = self.planner.decide(item)
        item.stash[world_key] = run.world
        failure = ""
        try:
            self._scope = self.scopes.enter(item, run)
        except LaunchError as error:
            failure = str(error)
        if failure:  # outside of the handler, so that pytest does not print it twice
            pytest.fail(failure, pytrace=False)
        self._timeout, self._failed = run.timeout, False
        self._simulation = {name: value for name in ("schedule", "faults") if (value := getattr(run, name)) is not None}
        self._test = RunTest(_item_id(item), self.new_shared_path())
        item.addfinalizer(partial(self._teardown, item))
        self._run(item, "setup", RUN_TEST, self._test.encode())

    def _call(self, item: pytest.Item) -> None:
        __tracebackhide__ = True
        if is_given(item) or any(map(draws, self._simulation.values())):
            self._run_examples(item)
        else:
            self._run(item, "call", PROCEED, Proceed("call", **self._simulation).encode())

    def _run_examples(self, item: pytest.Item) -> None:
        from pytest_ddp.given.dispatch import run_examples  # noqa: PLC0415  imports Hypothesis

        __tracebackhide__ = True
        scope, setup = self._current(), self._test.encode() if self._test else b""
        teardown = Proceed("teardown").encode()
        ranks = ExampleRanks(scope.pool, scope.group, self._timeout, setup, teardown, self._simulation)
        outcomes, bugs = run_examples(item, ranks)
        if bugs is not None:
            item.stash[bugs_key] = bugs
        self._finish(item, "call", outcomes)

    def _teardown(self, item: pytest.Item) -> None:
        scope, kept_for = self._scope, None
        if scope is None:
            return
        try:
            upcoming = self.planner.next_on_ranks(self.next_item, scope, item.session, failed=self._failed)
            proceed = Proceed("teardown", _item_id(upcoming) if upcoming else None)
            result = self._run(item, "teardown", PROCEED, proceed.encode())
            if any(answer.retire for answer in result.answers.values()) or (upcoming and scope.group.lost):
                self.scopes.retire(scope)
            else:
                kept_for = upcoming
        finally:
            self.scopes.leave(scope, kept_for)
            self._scope = None

    def _run(self, item: pytest.Item, when: When, target: str, body: bytes) -> PhaseResult:
        __tracebackhide__ = True
        group = self._current().group
        if self.debugger:
            group.on_debugging = self.debugger.lend_terminal
        return self._finish(item, when, group.run(target, body, timeout=self._timeout))

    def _finish(self, item: pytest.Item, when: When, outcomes: Sequence[Outcome]) -> PhaseResult:
        for outcome in outcomes:
            if isinstance(outcome, Raised) and outcome.kind == EXIT_KIND:  # the rank called `pytest.exit`
                pytest.exit(f"{outcome.message} (rank {outcome.rank})", json.loads(outcome.body))
        scope = self._current()
        item.stash[result_key] = result = PhaseResult.of(outcomes, scope.world)
        self._failed = self._failed or bool(failures(outcomes))
        if self.debugger and not scope.world.simulated:
            self.debugger.after_phase(item, when, scope.group, result)
        return result

    def _current(self) -> GroupScope:
        if self._scope is None:
            raise RuntimeError("no distributed test is being run")
        return self._scope


def _item_id(item: pytest.Item) -> ItemId:
    return ItemId(str(item.path), node_id(item))
