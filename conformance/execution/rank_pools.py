"""Ranks whose processes see worlds of one size alone, as the processes of a real run do.

A submission may read the world size once, when it is imported or at its first use, and keep it for good.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeVar, cast

from conformance.sandbox.sandbox import Sandbox
from pytest_ddp.outcomes.outcome import Died, Outcome
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.launcher import Launcher
from pytest_ddp.pool.pool import RankPool

_GRACE_SECONDS = 0.3
Kind = TypeVar("Kind", bound="SizedRanks")


def needs_new_connections(group: RankGroup, outcomes: Sequence[Outcome]) -> bool:
    """Whether a rank had died since the last run, in a group that took over connections: then no rank joined it anew.

    Where ranks make connections, those that died are replaced before the run.
    """
    died = [outcome.rank for outcome in outcomes if isinstance(outcome, Died)]
    return bool(group.connections) and not all(map(group.has_entered, died))


@dataclass
class SizedRanks:
    """A pool for each size of worlds; use as a context manager.

    Scenarios differ in their worlds: a group that ranks join ahead, unasked, is seldom the one that is wanted next.
    """

    launcher: Launcher  # starts the processes
    sandbox: Sandbox  # where they run
    counts: Counter[str] = field(default_factory=Counter)  # processes started, and places in groups that they served
    keeps_connections: ClassVar[bool] = True  # between scenarios of one world
    one_size: bool = False  # whether ranks of one size end before others start: memory is scarce
    _pools: dict[int, RankPool] = field(default_factory=dict)
    _prepared: set[int] = field(default_factory=set)
    _others: "dict[type[SizedRanks], SizedRanks]" = field(default_factory=dict)

    def run(
        self, world: World, target: str, payloads: bytes | Sequence[bytes] = b"", *, timeout: float
    ) -> list[Outcome]:
        """Run a target once on every rank of a fresh process group, as `RankPool.run` does; raise as it does."""
        with self.group(world) as group:
            outcomes = group.run(target, payloads, timeout=timeout)
        if needs_new_connections(group, outcomes):
            return self.run(world, target, payloads, timeout=timeout)
        return outcomes

    @contextmanager
    def group(self, world: World) -> Iterator[RankGroup]:
        """Give a fresh process group, for several runs that share it; raise LaunchError."""
        self._prepared.discard(world.size)
        with self._of(world).group(world) as group:
            yield group

    def prepare(self, world: World) -> None:
        """Let ranks join a fresh process group before it is wanted, unless those of its size are in one already."""
        if world.size not in self._prepared:
            self._prepared.add(world.size)
            self._of(world).prepare(world)

    def fresh(self) -> "SizedRanks":
        """Return others with processes of their own; close them before these."""
        if self.one_size:
            self.close()
        return SizedRanks(self.launcher, self.sandbox, self.counts, self.one_size)

    def other(self, kind: type[Kind]) -> Kind:
        """Return ranks of another kind, with processes of their own, which end with these."""
        if kind not in self._others:
            self._others[kind] = kind(self.launcher, self.sandbox, self.counts)
        return cast("Kind", self._others[kind])

    def close(self) -> None:
        """Let every rank end; others start when they are wanted."""
        self.close_others()
        self._prepared.clear()
        while self._pools:
            self._pools.popitem()[1].close()

    def close_others(self) -> None:
        """Let ranks of other kinds end; others start when they are wanted."""
        for other in self._others.values():
            other.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _of(self, world: World) -> RankPool:
        if world.size not in self._pools:
            if self.one_size:
                self.close()
            self._pools[world.size] = RankPool(
                self.launcher,
                grace=_GRACE_SECONDS,
                rendezvous=self.sandbox.rendezvous,
                counts=self.counts,
                prepares_groups=False,
                keeps_connections=self.keeps_connections,
                environment=self.sandbox.plan.environment,
                cwd=self.sandbox.working_folder,
            )
        return self._pools[world.size]
