"""Gives each distributed test its process group, and keeps a group for the tests that share it.

A test has a fresh process group, unless a `@distributed` fixture of wider scope is alive: the tests in that scope share
the group in which the fixture was made. Fixtures of wider scope live on the ranks as long as tests of the same world
follow one another and no rank is lost; so all ranks of a world always have the same fixtures alive.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from pytest_ddp.controller.rank_pools import RankPools
from pytest_ddp.items import group_owner
from pytest_ddp.planning.plan import RunOnRanks
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.pool import RankPool


@dataclass
class GroupScope:
    """The process group in which a test runs, and how long it lives.

    Attributes:
        world: the world that the test asked for.
        group: the process group.
        pool: the ranks of the group.
        warm: whether the ranks are kept for other tests.
        keeper: the node whose tests share the group; None if the group is one test's alone.
        open: holds the group, and what the group needs of the machine, until it is given up.
        turn: holds what is needed while a test runs.
    """

    world: World
    group: RankGroup
    pool: RankPool
    warm: bool
    keeper: pytest.Collector | None
    open: ExitStack
    turn: ExitStack

    def includes(self, item: pytest.Item | None, world: World) -> bool:
        """Whether a test shares this group, because a fixture that was made in it is alive for the test too."""
        if self.keeper is None or item is None or self.group.lost:
            return False
        return self.world == world and self.keeper in item.listchain()

    @property
    def is_well(self) -> bool:
        """Whether its ranks live and have sent nothing since their last answer."""
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
class GroupScopes:
    """Finds the group of each test, and knows in which world fixtures of wider scope may be alive on warm ranks."""

    pools: RankPools
    _current: GroupScope | None = None
    _kept: GroupScope | None = None
    _alive: World | None = None

    def enter(self, item: pytest.Item, run: RunOnRanks) -> GroupScope:
        """Return the group in which a test runs; raise LaunchError."""
        if self._kept is not None and not self._kept.is_well:  # a rank died between two tests
            self._retire(self._kept.world)
        self._current = self._find(item, run)
        return self._current

    def leave(self, scope: GroupScope, kept_for: pytest.Item | None) -> None:
        """End a test; `kept_for` is the next test, which finds fixtures of this one on the ranks."""
        self._current = None
        scope.turn.close()
        if scope.warm:
            self._alive = scope.world if kept_for else None
            scope.pool.ranks_with_fixtures = scope.world.size if kept_for else 0
        if scope.includes(kept_for, scope.world):
            self._kept = scope
            return
        scope.close()
        if scope is self._kept:
            self._kept = None

    def retire(self, scope: GroupScope) -> None:
        """Let the ranks finish and end; the next test gets new ones."""
        if scope.warm:
            self._retire(scope.world)

    def release(self) -> None:
        """End the fixtures that hold a group on warm ranks: `ddp_ranks` needs these ranks."""
        if self._kept is not None:
            self._retire(self._kept.world)

    def close(self) -> None:
        """Give up every group."""
        for scope in (self._current, self._kept):
            if scope is not None:
                scope.close()
        self._current = self._kept = None

    def _find(self, item: pytest.Item, run: RunOnRanks) -> GroupScope:
        if run.isolation == "process":
            if run.world.device == "cuda":  # it would wait for the GPUs of the kept group
                self.release()
            return self._open(run.world, keeper=None, warm=False)
        if self._kept is not None and self._kept.includes(item, run.world):
            self._kept.widen(group_owner(item))
            if run.world.device != "cuda":
                self._kept.turn.enter_context(self.pools.lease(run.world))
            return self._kept
        if self._alive is not None and self._alive != run.world:  # the test for which fixtures were kept did not come
            self._retire(self._alive)
        self.close()
        return self._open(run.world, keeper=group_owner(item), warm=True)

    def _open(self, world: World, *, keeper: pytest.Collector | None, warm: bool) -> GroupScope:
        with ExitStack() as opening, ExitStack() as turn:
            holder = opening if world.device == "cuda" else turn  # a group is bound to its GPUs, not to its cores
            leased = holder.enter_context(self.pools.lease(world))
            pool = self.pools.of(world)
            if not warm:
                pool = opening.enter_context(pool.fresh())
            group = opening.enter_context(pool.group(leased))
            return GroupScope(world, group, pool, warm, keeper, opening.pop_all(), turn.pop_all())

    def _retire(self, world: World) -> None:
        self.close()
        self._alive = None
        self.pools.of(world).close()
