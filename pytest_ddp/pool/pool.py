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
from pytest_ddp.pool.group import GRACE_SECONDS, GROUP_TIMEOUT_MARGIN, RankGroup
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
        counts: how many processes were "started", and how many ranks of groups they "served"; shared with pools
            made by `fresh`.
        prepares_groups: whether ranks that leave a group join the next one at once; useful if it has the same world.
        timeout_margin: seconds by which a process group's own timeout is longer than that of a run.
        exit_output: what each rank printed while it ended, such as exceptions in its `atexit` handlers.
        latest_group: the name of the newest group; ranks have left all others. Empty if there are no ranks.
        ranks_with_fixtures: fixtures may be alive between runs on this many ranks, from rank 0 on. If one of these
            ranks is lost, all ranks finish their fixtures and end before new ones start: so all have the same ones.
    """

    launcher: Launcher = field(default_factory=shared_launcher)
    host: str | None = None
    host_body: bytes = b""
    capture: bool = True
    grace: float = GRACE_SECONDS
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    counts: Counter[str] = field(default_factory=Counter)
    prepares_groups: bool = True
    timeout_margin: float = GROUP_TIMEOUT_MARGIN
    exit_output: dict[int, str] = field(default_factory=dict)
    latest_group: str = ""
    ranks_with_fixtures: int = 0
    _opened: IO[bytes] | None = None
    _ahead: RankGroup | None = None
    _processes: dict[int, RankProcess] = field(default_factory=dict)

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
        self.counts["served"] += world.size
        try:
            yield group
        finally:
            self._discard_gone(group)
            # GPUs may be another worker's by then; a group on them is not made before its test.
            if self.prepares_groups and world.device == "cpu" and not (group.lost or group.disconnected):
                self.prepare(world)

    def prepare(self, world: World) -> None:
        """Let ranks join a fresh process group before it is wanted, if all of them are there; the next `group` has it.

        Only where nothing runs, and no group has been prepared.
        """
        processes = [self._processes[rank] for rank in range(world.size) if rank in self._processes]
        if len(processes) == world.size and all(process.is_idle() for process in processes):
            self._ahead = self._new(world)
            self._ahead.assign(self._new_group(), processes)
            self._ahead.start_joining()

    def renew(self, group: RankGroup) -> None:
        """Make `group`, which this pool gave, whole again: a fresh process group, new ranks for those that are gone.

        Raises:
            LaunchError: when ranks cannot be started.
        """
        self._discard_gone(group)
        self._form(group)

    def fresh(self) -> "RankPool":
        """Return a pool of its own processes that shares the launcher and the store; close it before this one."""
        pool = RankPool(
            self.launcher, self.host, self.host_body, self.capture, self.grace, self.rendezvous, self.counts
        )
        pool.counts, pool.exit_output, pool.timeout_margin = self.counts, self.exit_output, self.timeout_margin
        pool.prepares_groups = False
        return pool

    def close(self) -> None:
        """Let every rank finish what lives on it, then end it."""
        self._joined_ahead(World(0))
        self._empty()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _empty(self) -> None:
        for process in self._processes.values():
            process.reset()
            process.send(Close())
        end = time.monotonic() + _CLOSE_SECONDS
        for process in list(self._processes.values()):
            while messages := process.receive(end - time.monotonic()):
                pass
            if words := process.output + ("" if messages is None else _STILL_ENDING.format(_CLOSE_SECONDS)):
                self.exit_output[process.rank] = self.exit_output.get(process.rank, "") + words
            self._discard(process)
        self.latest_group, self.ranks_with_fixtures = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new(self, world: World) -> RankGroup:
        return RankGroup(world, "", [], self.launcher, self._board, self.grace, timeout_margin=self.timeout_margin)

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
        well = not failed and group.world == world and all(process.is_idle() for process in group.processes)
        return group if well else None

    def _form(self, group: RankGroup) -> None:
        """Let ranks join `group` under a new name.

        Ranks that an earlier run has left unable to (it took their descriptors, memory or threads) are replaced once.
        """
        while True:
            fresh = self._fill(group.world.size)
            processes = [self._processes[rank] for rank in range(group.world.size)]
            group.assign(self._new_group(), processes)
            group.start_joining()
            outcomes = group.join()
            if not failures(outcomes):
                return
            self._discard_gone(group)
            for process in group.processes:
                self._discard(process)
            if fresh == group.world.size:
                raise LaunchError(f"the ranks could not form a process group:\n{RankFailure(outcomes, group.world)}")

    def _new_group(self) -> str:
        self.latest_group = self.rendezvous.new_group()
        return self.latest_group

    def _discard_gone(self, group: RankGroup) -> None:
        while group.lost_processes:
            self._discard(group.lost_processes.pop())

    def _fill(self, size: int) -> int:
        """Have a live rank in every place below `size`; what died between runs is replaced. Return how many are new."""
        for process in [process for process in self._processes.values() if not process.is_idle()]:
            self._discard(process)
        if any(rank not in self._processes for rank in range(self.ranks_with_fixtures)):
            self._empty()
        fresh = [self._launch(rank) for rank in range(size) if rank not in self._processes]
        for process in fresh:
            self._await_ready(process)
        return len(fresh)

    def _launch(self, rank: int) -> RankProcess:
        make_room(self._board.fileno(), rank + 1)
        shared = SharedFiles.make(rank, self._board)
        try:
            process = RankProcess(rank, self.launcher.start(shared), shared)
        except BaseException:  # LaunchError, or an interruption
            shared.close()
            raise
        self._processes[rank] = process
        self.counts["started"] += 1
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
        process.send(launch)
        return process

    def _await_ready(self, process: RankProcess) -> None:
        messages = process.receive(_START_SECONDS)
        if messages == [Ready()]:
            return
        output = process.output
        self._discard(process)
        if messages is None:
            why = f"its process ended with exit code {self.launcher.exit_code(process.pid)}"
        elif messages and isinstance(messages[0], Answer):
            why = messages[0].traceback
        else:
            why = f"it was not ready within {_START_SECONDS:g} s"
        raise LaunchError(f"rank {process.rank} could not start: {why}\n{output}".rstrip())

    def _discard(self, process: RankProcess) -> None:
        process.kill()
        process.shared.close()
        self._processes.pop(process.rank, None)
