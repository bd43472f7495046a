"""The pool of warm ranks: the whole face of the core.

`Ranks.run(world, target, payloads, timeout=...)` runs a function on every rank of a fresh process group and returns
one outcome per rank. It never raises for what a rank does; see `failure.RankFailure` for that.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from pytest_ddp.errors import LaunchError
from pytest_ddp.launcher import Launcher, Shared, shared_launcher
from pytest_ddp.member import Member
from pytest_ddp.messages import Answer, Close, Launch, Ready
from pytest_ddp.outcome import Outcome
from pytest_ddp.rank_group import GRACE_SECONDS, RankGroup
from pytest_ddp.rendezvous import Rendezvous
from pytest_ddp.world import World

_START_SECONDS = 120.0
_CLOSE_SECONDS = 10.0


@dataclass
class Ranks:
    """Rank processes that stay warm between runs; use as a context manager.

    Attributes:
        launcher: starts the processes; by default this process's fork server.
        host: a function "module:function" that every rank runs under; it is called once with `host_body`.
        host_body: what the host needs to know.
        capture: whether what ranks print is kept for their outcomes rather than shown.
        grace: seconds that the other ranks get once one has failed.
        rendezvous: the store that the ranks meet at.
        started: how many processes the pool has started so far.
        newest: the name of the group that was made last; ranks have left all others.
    """

    launcher: Launcher = field(default_factory=shared_launcher)
    host: str | None = None
    host_body: bytes = b""
    capture: bool = True
    grace: float = GRACE_SECONDS
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    started: int = 0
    newest: str = ""
    _members: dict[int, Member] = field(default_factory=dict)

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
        """Give a fresh process group on warm ranks, for several runs that share it."""
        self._fill(world.size)
        members = [self._members[rank] for rank in range(world.size)]
        group = RankGroup(world, self._new_group(), members, self.launcher, self.grace)
        try:
            yield group
        finally:
            self._discard_gone(group)

    def renew(self, group: RankGroup) -> None:
        """Make `group`, which this pool gave, whole again: a fresh process group, new ranks for those that are gone.

        Raises:
            LaunchError: when ranks cannot be started.
        """
        self._discard_gone(group)
        self._fill(group.world.size)
        members = [self._members[rank] for rank in range(group.world.size)]
        group.begin(self._new_group(), members)

    def fresh(self) -> "Ranks":
        """Return a pool of its own processes that shares the launcher and the store; close it before this one."""
        return Ranks(self.launcher, self.host, self.host_body, self.capture, self.grace, self.rendezvous)

    def close(self) -> None:
        """Let every rank finish what lives on it, then end it."""
        for member in self._members.values():
            member.send(Close())
        end = time.monotonic() + _CLOSE_SECONDS
        for member in list(self._members.values()):
            while member.receive(end - time.monotonic()):
                pass
            self._discard(member)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_group(self) -> str:
        self.newest = self.rendezvous.new_group()
        return self.newest

    def _discard_gone(self, group: RankGroup) -> None:
        while group.gone:
            self._discard(group.gone.pop())

    def _fill(self, size: int) -> None:
        """Have a live rank in every place below `size`; what died between runs is replaced."""
        for member in [member for member in self._members.values() if not member.is_quiet()]:
            self._discard(member)
        for member in [self._launch(rank) for rank in range(size) if rank not in self._members]:
            self._await_ready(member)

    def _launch(self, rank: int) -> Member:
        shared = Shared.make()
        try:
            member = Member(rank, self.launcher.start(shared), shared)
        except LaunchError:
            shared.close()
            raise
        self._members[rank] = member
        self.started += 1
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

    def _await_ready(self, member: Member) -> None:
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

    def _discard(self, member: Member) -> None:
        member.kill()
        member.shared.close()
        self._members.pop(member.rank, None)
