"""Runs setup, call and teardown of distributed tests on their ranks.

A test has a fresh process group, unless a `@distributed` fixture of wider scope is alive: the tests under its scope
share the group in which it was made. Fixtures of wider scope live on the ranks as long as the tests that follow one
another run in the same world and no rank is lost; ranks of one world thus always have the same fixtures alive.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pytest

from pytest_ddp.debugger import NO_TRACE, Debugger
from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.exits import leave_if_asked
from pytest_ddp.failure import failures
from pytest_ddp.items import is_distributed, keeping_scope, request_of
from pytest_ddp.outcome import Outcome
from pytest_ddp.phase import ItemId, PhaseRequest, When
from pytest_ddp.plan import Plan, Refuse, Run, Skip
from pytest_ddp.rank_group import RankGroup
from pytest_ddp.ranks import Ranks
from pytest_ddp.report import answer_of
from pytest_ddp.request import Request
from pytest_ddp.world import World

_PHASE_TARGET = "pytest_ddp.rank_session:phase"
outcomes_key = pytest.StashKey[tuple[list[Outcome], World]]()


class Provider(Protocol):
    """Who decides about tests and has the ranks."""

    def plan(self, request: Request) -> Plan:
        """Decide what to do with what a test asks for."""

    def ranks(self, device: str) -> Ranks:
        """Return the warm ranks for a device."""


@dataclass
class Place:
    """Where a test runs: a group, as long as `open` is."""

    group: RankGroup
    warm: bool
    open: ExitStack
    keeper: pytest.Collector | None = None

    def widen(self, keeper: pytest.Collector | None) -> None:
        """Let the group live as long as a fixture of a test that joined it."""
        if keeper is not None and self.keeper is not None and keeper in self.keeper.listchain():
            self.keeper = keeper

    def holds(self, item: pytest.Item | None, world: World) -> bool:
        """Whether the test belongs in this group, because a fixture made in it is alive for the test too."""
        if self.keeper is None or item is None or self.group.gone:
            return False
        return self.group.world == world and self.keeper in item.listchain()


@dataclass
class PhaseRunner:
    """Takes one distributed test after the other through its phases."""

    provider: Provider
    shared_folder: Callable[[], str]
    debugger: Debugger | None = None
    upcoming: pytest.Item | None = None
    _place: Place | None = None
    _kept: Place | None = None
    _timeout: float = 0.0
    _shared_path: str = ""
    _failed: bool = False
    _alive: World | None = field(default=None)

    def take_over(self, item: pytest.Item) -> None:
        """Let the phases of a test happen on ranks instead of here."""
        item.setup = partial(self._setup, item)  # type: ignore[method-assign]
        item.runtest = partial(self._call, item)  # type: ignore[method-assign]

    def close(self) -> None:
        """Give up the groups."""
        for place in (self._place, self._kept):
            if place is not None:
                place.open.close()
        self._place = self._kept = None

    def make_way(self) -> None:
        """End the fixtures that hold a group on warm ranks: someone else needs these ranks."""
        if self._kept is not None:
            self._retire(self._kept.group.world)

    def _setup(self, item: pytest.Item) -> None:
        run = self._decide(item)
        try:
            self._place = self._find_place(item, run)
        except LaunchError as error:
            self.close()
            pytest.fail(str(error), pytrace=False)
        self._timeout, self._shared_path, self._failed = run.timeout, self.shared_folder(), False
        item.addfinalizer(partial(self._teardown, item))
        self._phase(item, "setup")

    def _call(self, item: pytest.Item) -> None:
        self._phase(item, "call")

    def _teardown(self, item: pytest.Item) -> None:
        place = self._current()
        following = self._following(item, place)
        try:
            outcomes = self._phase(item, "teardown", following)
            if any(answer_of(outcome).retire for outcome in outcomes) or (following and place.group.gone):
                following = None
                self._retire(place.group.world if place.warm else None)
            elif place.warm:
                self._alive = place.group.world if following else None
        finally:
            self._leave(place, following)

    def _leave(self, place: Place, following: pytest.Item | None) -> None:
        self._place = None
        if place.holds(following, place.group.world):
            self._kept = place
            return
        place.open.close()
        if place is self._kept:
            self._kept = None

    def _phase(self, item: pytest.Item, when: When, following: pytest.Item | None = None) -> list[Outcome]:
        group = self._current().group
        if self.debugger:
            self.debugger.watch(group)
        request = PhaseRequest(when, _item_id(item), _item_id(following) if following else None, self._shared_path)
        outcomes = group.run(_PHASE_TARGET, request.encode(), timeout=self._timeout)
        leave_if_asked(outcomes)
        self._failed = self._failed or bool(failures(outcomes))
        item.stash[outcomes_key] = outcomes, group.world
        if self.debugger:
            self.debugger.after(item, when, group, outcomes)
        return outcomes

    def _current(self) -> Place:
        if self._place is None:
            raise RuntimeError("no distributed test is being run")
        return self._place

    def _find_place(self, item: pytest.Item, run: Run) -> Place:
        if run.isolation == "process":
            with ExitStack() as opening:
                ranks = opening.enter_context(self.provider.ranks(run.world.device).fresh())
                group = opening.enter_context(ranks.group(run.world))
                return Place(group, warm=False, open=opening.pop_all())
        if self._kept is not None and self._kept.holds(item, run.world):
            self._kept.widen(keeping_scope(item))
            return self._kept
        if self._alive not in {None, run.world}:  # a test was announced that did not come
            self._retire(self._alive)
        self.close()
        opened = ExitStack()
        group = opened.enter_context(self.provider.ranks(run.world.device).group(run.world))
        return Place(group, warm=True, open=opened, keeper=keeping_scope(item))

    def _retire(self, world: World | None) -> None:
        """Let the warm ranks finish and end; the next test gets new ones."""
        self.close()
        self._alive = None
        if world is not None:
            self.provider.ranks(world.device).close()

    def _decide(self, item: pytest.Item) -> Run:
        if item.config.option.trace:
            pytest.fail(NO_TRACE, pytrace=False)
        decision = self._plan(item)
        if isinstance(decision, UsageError):
            pytest.fail(str(decision), pytrace=False)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            pytest.fail(decision.reason, pytrace=False)
        return decision

    def _plan(self, item: pytest.Item) -> Plan | UsageError:
        try:
            return self.provider.plan(request_of(item))
        except UsageError as error:
            return error

    def _following(self, item: pytest.Item, place: Place) -> pytest.Item | None:
        """Return the next test that will find the fixtures of this one on its ranks, as far as can be known."""
        items: list[Any] = item.session.items
        stopping = item.session.shouldfail or item.session.shouldstop
        if stopping or not place.warm or place.group.gone or (place.keeper is not None and self._failed):
            return None
        if self.upcoming not in items:
            return None
        for later in items[items.index(self.upcoming) :]:
            decision = self._plan(later) if is_distributed(later) else None
            if isinstance(decision, Run) and decision.isolation == "warm":
                return later if decision.world == place.group.world else None
        return None


def _item_id(item: pytest.Item) -> ItemId:
    return ItemId(str(item.path), item.nodeid)
