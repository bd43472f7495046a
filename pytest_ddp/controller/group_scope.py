"""Finds the ranks and the process group that each distributed test runs in.

A test has a fresh process group, unless a `@distributed` fixture of wider scope is alive: the tests under its scope
share the group in which it was made. Fixtures of wider scope live on the ranks as long as the tests that follow one
another run in the same world and no rank is lost; ranks of one world thus always have the same fixtures alive.
"""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from pytest_ddp.items import group_owner
from pytest_ddp.planning.plan import Run
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.pool import RankPool


class Provider(Protocol):
    """Who has the ranks."""

    def ranks(self, device: str) -> RankPool:
        """Return the warm ranks for a device."""

    def lease(self, world: World) -> AbstractContextManager[World]:
        """Hold what a world needs of this machine; give the world with the GPUs that it got."""


@dataclass
class Place:
    """Where a test runs.

    Attributes:
        world: what was asked for.
        group: the process group; `pool` has its ranks.
        warm: whether the ranks are kept for other tests.
        keeper: the node whose tests share the group, None if it is this test's alone.
        open: holds the group, and what it needs of the machine for as long as it is.
        turn: holds what is needed while a test runs.
    """

    world: World
    group: RankGroup
    pool: RankPool
    warm: bool
    keeper: pytest.Collector | None
    open: ExitStack
    turn: ExitStack

    def holds(self, item: pytest.Item | None, world: World) -> bool:
        """Whether the test belongs in this group, because a fixture made in it is alive for the test too."""
        if self.keeper is None or item is None or self.group.lost:
            return False
        return self.world == world and self.keeper in item.listchain()

    @property
    def is_well(self) -> bool:
        """Whether its ranks live and have nothing to say."""
        return all(process.is_idle() for process in self.group.processes)

    def widen(self, keeper: pytest.Collector | None) -> None:
        """Let the group live as long as the fixtures of a test that joins it."""
        if keeper is not None and self.keeper is not None and keeper in self.keeper.listchain():
            self.keeper = keeper

    def close(self) -> None:
        """Give up the group."""
        self.turn.close()
        self.open.close()


@dataclass
class Places:
    """Gives every test its place, and knows in which world fixtures of wider scope may be alive on warm ranks."""

    provider: Provider
    _current: Place | None = None
    _kept: Place | None = None
    _alive: World | None = field(default=None)

    def enter(self, item: pytest.Item, run: Run, *, begun: bool) -> Place:
        """Return the place of a test, which may have begun there; raise LaunchError."""
        if self._kept is not None and not (begun or self._kept.is_well):  # a rank died between two tests
            self._retire(self._kept.world)
        self._current = self._find(item, run)
        return self._current

    def leave(self, place: Place, following: pytest.Item | None) -> None:
        """Say that the test is over, and which one will find its fixtures on the ranks."""
        self._current = None
        place.turn.close()
        if place.warm:
            self._alive = place.world if following else None
            place.pool.ranks_with_fixtures = place.world.size if following else 0
        if place.holds(following, place.world):
            self._kept = place
            return
        place.close()
        if place is self._kept:
            self._kept = None

    def retire(self, place: Place) -> None:
        """Let the ranks finish and end; the next test gets new ones."""
        if place.warm:
            self._retire(place.world)

    def make_way(self) -> None:
        """End the fixtures that hold a group on warm ranks: someone else needs these ranks."""
        if self._kept is not None:
            self._retire(self._kept.world)

    def close(self) -> None:
        """Give up every group."""
        for place in (self._current, self._kept):
            if place is not None:
                place.close()
        self._current = self._kept = None

    def _find(self, item: pytest.Item, run: Run) -> Place:
        if run.isolation == "process":
            if run.world.device == "cuda":  # the GPUs of a kept group are not to be waited for
                self.make_way()
            return self._open(run.world, keeper=None, warm=False)
        if self._kept is not None and self._kept.holds(item, run.world):
            self._kept.widen(group_owner(item))
            self._take_turn(self._kept)
            return self._kept
        if self._alive is not None and self._alive != run.world:  # a test was announced that did not come
            self._retire(self._alive)
        self.close()
        return self._open(run.world, keeper=group_owner(item), warm=True)

    def _open(self, world: World, *, keeper: pytest.Collector | None, warm: bool) -> Place:
        with ExitStack() as opening, ExitStack() as turn:
            holder = opening if world.device == "cuda" else turn  # a group is bound to its GPUs, not to its cores
            given = holder.enter_context(self.provider.lease(world))
            pool = self.provider.ranks(world.device)
            if not warm:
                pool = opening.enter_context(pool.fresh())
            group = opening.enter_context(pool.group(given))
            return Place(world, group, pool, warm, keeper, opening.pop_all(), turn.pop_all())

    def _take_turn(self, place: Place) -> None:
        if place.world.device != "cuda":
            place.turn.enter_context(self.provider.lease(place.world))

    def _retire(self, world: World) -> None:
        self.close()
        self._alive = None
        self.provider.ranks(world.device).close()
