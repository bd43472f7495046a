"""The pool of warm ranks: the whole face of the core.

`RankPool.run(world, target, payloads, timeout=...)` runs a function on every rank of a fresh process group and returns
one outcome per rank. It never raises for what a rank does; see `failure.RankFailure` for that.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Self

from pytest_ddp.errors import LaunchError
from pytest_ddp.observed.deadlocks.board import make_room
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import GRACE_SECONDS, GROUP_SLACK_SECONDS, RankGroup
from pytest_ddp.pool.launcher import Launcher, shared_launcher
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.pool.rendezvous import Rendezvous
from pytest_ddp.protocol.messages import Answer, Close, Launch, Ready
from pytest_ddp.protocol.shared_files import SharedFiles, memory_file

_START_SECONDS = 120.0
_CLOSE_SECONDS = 10.0
_STILL_ENDING = "was stopped: after {:g} s it was still at the teardown of its fixtures, or in a function of atexit\n"


@dataclass
class RankPool:
    """Rank processes that stay warm between runs; use as a context manager.

    Attributes:
        launcher: starts the processes; by default this process's fork server.
        host: a function "module:function" that every rank runs under; it is called once with `host_body`.
        host_body: what the host needs to know.
        capture: whether what ranks print is kept for their outcomes rather than shown.
        grace: seconds that the other ranks get once one has failed.
        rendezvous: the store that the ranks meet at.
        tally: how many processes were "started", and how many places in groups they "served"; shared with pools
            made by `fresh`.
        warm: whether its ranks prepare their next group as soon as they leave one: worth while where it will be alike.
        slack: seconds that the groups' own timeouts lie behind those of runs.
        farewells: what ranks printed while they ended, such as exceptions in their `atexit` handlers.
        newest: the name of the group that was made last; ranks have left all others. Empty when there are no ranks.
        inhabited: in how many of its places fixtures may be alive between runs. When one of these ranks is lost, all
            of them finish theirs and end before new ones start, so that all have the same fixtures alive.
    """

    launcher: Launcher = field(default_factory=shared_launcher)
    host: str | None = None
    host_body: bytes = b""
    capture: bool = True
    grace: float = GRACE_SECONDS
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    tally: Counter[str] = field(default_factory=Counter)
    warm: bool = True
    slack: float = GROUP_SLACK_SECONDS
    farewells: dict[int, str] = field(default_factory=dict)
    newest: str = ""
    inhabited: int = 0
    _opened: IO[bytes] | None = None
    _ahead: RankGroup | None = None
    _members: dict[int, RankProcess] = field(default_factory=dict)

    def run(
        self, world: World, target: str, payloads: bytes | Sequence[bytes] = b"", *, timeout: float
    ) -> list[Outcome]:
        """Run `target` ("module:function", bytes to bytes) once on every rank of a fresh process group.

        Args:
            world: the process group to make.
            target: imported and called on the ranks.
            payloads: the argument, one for all ranks or one per rank.
            timeout: seconds until ranks that are still running are ended.

        Returns:
            One outcome per rank, in rank order.

        Raises:
            LaunchError: when ranks cannot be started.
        """
        with self.group(world) as group:
            return group.run(target, payloads, timeout=timeout)

    @contextmanager
    def group(self, world: World) -> Iterator[RankGroup]:
        """Give a fresh process group on warm ranks, for several runs that share it; raise LaunchError.

        Whoever wanted one will soon want another one like it: the ranks join that one while nobody waits for them.
        """
        group = self._joined_ahead(world)
        if group is None:
            group = self._new(world)
            self._form(group)
        self.tally["served"] += world.size
        try:
            yield group
        finally:
            self._discard_gone(group)
            # GPUs may be another worker's by then; a group on them is not made before its test.
            if self.warm and world.device == "cpu" and not (group.lost or group.hung_up):
                self.prepare(world)

    def prepare(self, world: World) -> None:
        """Let ranks join a fresh process group before it is wanted, if all of them are there; the next `group` has it.

        Only where nothing runs, and no group has been prepared.
        """
        members = [self._members[rank] for rank in range(world.size) if rank in self._members]
        if len(members) == world.size and all(member.is_quiet() for member in members):
            self._ahead = self._new(world)
            self._ahead.begin(self._new_group(), members)
            self._ahead.begin_to_join()

    def renew(self, group: RankGroup) -> None:
        """Make `group`, which this pool gave, whole again: a fresh process group, new ranks for those that are gone.

        Raises:
            LaunchError: when ranks cannot be started.
        """
        self._discard_gone(group)
        self._form(group)

    def fresh(self) -> "RankPool":
        """Return a pool of its own processes that shares the launcher and the store; close it before this one."""
        pool = RankPool(self.launcher, self.host, self.host_body, self.capture, self.grace, self.rendezvous, self.tally)
        pool.farewells, pool.warm, pool.slack = self.farewells, False, self.slack
        return pool

    def close(self) -> None:
        """Let every rank finish what lives on it, then end it."""
        self._joined_ahead(World(0))
        self._empty()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _empty(self) -> None:
        for member in self._members.values():
            member.start_over()
            member.send(Close())
        end = time.monotonic() + _CLOSE_SECONDS
        for member in list(self._members.values()):
            while messages := member.receive(end - time.monotonic()):
                pass
            if words := member.output + ("" if messages is None else _STILL_ENDING.format(_CLOSE_SECONDS)):
                self.farewells[member.rank] = self.farewells.get(member.rank, "") + words
            self._discard(member)
        self.newest, self.inhabited = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new(self, world: World) -> RankGroup:
        return RankGroup(world, "", [], self.launcher, self._board, self.grace, slack=self.slack)

    @property
    def _board(self) -> IO[bytes]:
        if self._opened is None:
            self._opened = memory_file()
        return self._opened

    def _joined_ahead(self, world: World) -> RankGroup | None:
        """Return the group that the ranks have joined already, if it is such a one and they are well."""
        group, self._ahead = self._ahead, None
        if group is None:
            return None
        failed = failures(group.join())
        self._discard_gone(group)
        well = not failed and group.world == world and all(member.is_quiet() for member in group.members)
        return group if well else None

    def _form(self, group: RankGroup) -> None:
        """Let ranks join `group` under a new name.

        Ranks that an earlier run has left unable to (it took their descriptors, memory or threads) are replaced once.
        """
        while True:
            fresh = self._fill(group.world.size)
            members = [self._members[rank] for rank in range(group.world.size)]
            group.begin(self._new_group(), members)
            group.begin_to_join()
            outcomes = group.join()
            if not failures(outcomes):
                return
            self._discard_gone(group)
            for member in group.members:
                self._discard(member)
            if fresh == group.world.size:
                raise LaunchError(f"the ranks could not form a process group:\n{RankFailure(outcomes, group.world)}")

    def _new_group(self) -> str:
        self.newest = self.rendezvous.new_group()
        return self.newest

    def _discard_gone(self, group: RankGroup) -> None:
        while group.gone:
            self._discard(group.gone.pop())

    def _fill(self, size: int) -> int:
        """Have a live rank in every place below `size`; what died between runs is replaced. Return how many are new."""
        for member in [member for member in self._members.values() if not member.is_quiet()]:
            self._discard(member)
        if any(rank not in self._members for rank in range(self.inhabited)):
            self._empty()
        fresh = [self._launch(rank) for rank in range(size) if rank not in self._members]
        for member in fresh:
            self._await_ready(member)
        return len(fresh)

    def _launch(self, rank: int) -> RankProcess:
        make_room(self._board.fileno(), rank + 1)
        shared = SharedFiles.make(rank, self._board)
        try:
            member = RankProcess(rank, self.launcher.start(shared), shared)
        except BaseException:  # LaunchError, or an interruption
            shared.close()
            raise
        self._members[rank] = member
        self.tally["started"] += 1
        launch = Launch(
            rank=rank,
            sys_path=sys.path,
            cwd=os.getcwd(),  # noqa: PTH109  a plain string travels
            env=dict(os.environ),
            store=self.rendezvous.address,
            capture=self.capture,
            host=self.host,
            body=self.host_body,
        )
        member.send(launch)
        return member

    def _await_ready(self, member: RankProcess) -> None:
        messages = member.receive(_START_SECONDS)
        if messages == [Ready()]:
            return
        output = member.output
        self._discard(member)
        if messages is None:
            why = f"its process ended with exit code {self.launcher.exit_code(member.pid)}"
        elif messages and isinstance(messages[0], Answer):
            why = messages[0].traceback
        else:
            why = f"it was not ready within {_START_SECONDS:g} s"
        raise LaunchError(f"rank {member.rank} could not start: {why}\n{output}".rstrip())

    def _discard(self, member: RankProcess) -> None:
        member.kill()
        member.shared.close()
        self._members.pop(member.rank, None)
