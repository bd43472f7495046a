"""The pool: rank processes that run functions in process groups, one run after another.

`RankPool.run(world, target, payloads, timeout=...)` returns one outcome per rank. It raises nothing for what a rank
does; callers that want an exception raise `outcomes.failure.RankFailure`.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Self

from pytest_ddp.errors import LaunchError
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.world import World
from pytest_ddp.pool.group import GRACE_SECONDS, GROUP_TIMEOUT_MARGIN, Payloads, RankGroup
from pytest_ddp.pool.launcher import Launcher, shared_launcher
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.pool.rendezvous import Rendezvous
from pytest_ddp.protocol.flight_recorder import make_room
from pytest_ddp.protocol.messages import Answer, Close, Launch
from pytest_ddp.protocol.shared_files import SharedFiles, memory_file

_START_SECONDS = 120.0
_CLOSE_SECONDS = 10.0
_NOT_ENDED = "was killed: after {:g} s it still ran the teardown of its fixtures or an atexit handler\n"


@dataclass
class RankPool:
    """Rank processes that are kept between runs; use as a context manager.

    Attributes:
        launcher: starts the processes; by default the fork server of this process.
        host: a function "module:function" that every rank calls once, with `host_body`, and in which it serves.
        host_body: the argument of `host`.
        capture: whether the output of ranks is kept for their outcomes; otherwise it is shown at once.
        grace: seconds that the other ranks get after a rank has failed.
        rendezvous: the store that the ranks use.
        counts: how many processes were "started", and how many ranks of groups they "served".
        prepares_groups: whether ranks that leave a group join the next one at once; useful if it has the same world.
        keeps_connections: whether the next group of the same world uses the connections of one that has settled.
        timeout_margin: seconds by which a process group's own timeout is longer than that of a run.
        environment: the environment variables of ranks; by default those of this process.
        cwd: the working directory of ranks; by default that of this process.
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
    keeps_connections: bool = False
    timeout_margin: float = GROUP_TIMEOUT_MARGIN
    environment: Mapping[str, str] | None = None
    cwd: str | None = None
    exit_output: dict[int, str] = field(default_factory=dict)
    latest_group: str = field(default="", init=False)
    ranks_with_fixtures: int = field(default=0, init=False)
    _prepared: RankGroup | None = field(default=None, init=False)
    _settled: RankGroup | None = field(default=None, init=False)
    _processes: dict[int, RankProcess] = field(default_factory=dict, init=False)

    def run(self, world: World, target: str, payloads: Payloads = b"", *, timeout: float) -> list[Outcome]:
        """Run `target` on every rank of a fresh process group; return one outcome per rank, in rank order.

        Args:
            world: the process group to form.
            target: a function "module:function", bytes to bytes, which ranks import and call.
            payloads: its argument: one for all ranks, or one per rank.
            timeout: seconds after which ranks that still run are ended.

        Raises:
            LaunchError: ranks cannot be started, or cannot form the group.
        """
        with self.group(world) as group:
            return group.run(target, payloads, timeout=timeout)

    @contextmanager
    def group(self, world: World) -> Iterator[RankGroup]:
        """Give a fresh process group for several runs; raise LaunchError as `run` does.

        If `prepares_groups`, the ranks then join a group of the same world: the next test is likely to need it.
        """
        group = self._taken_over(world) or self._take_prepared(world)
        if group is None:
            group = self._new_group(world)
            self._form(group)
        self.counts["served"] += world.size
        try:
            yield group
        finally:
            self._discard_lost(group)
            # No group is prepared on GPUs, because another xdist worker may have them by then.
            if self.keeps_connections and group.is_settled:
                self._settled = group
            if self.prepares_groups and world.device == "cpu" and not (group.lost or group.disconnected):
                self.prepare(world)

    def prepare(self, world: World) -> None:
        """Let ranks join a fresh process group ahead of time; the next call of `group` takes it.

        Does nothing unless all ranks of the world are alive and idle, or if an earlier group has connections for it. A
        group that was prepared must be taken first.
        """
        if self._settled is not None and self._settled.world == world:
            return
        processes = [self._processes[rank] for rank in range(world.processes) if rank in self._processes]
        if len(processes) == world.processes and all(process.is_idle() for process in processes):
            self._prepared = self._new_group(world)
            self._start_joining(self._prepared, processes)

    def renew(self, group: RankGroup) -> None:
        """Form a fresh process group for `group`, which came from this pool; start ranks for those that it lost.

        Raises:
            LaunchError: as `run` does.
        """
        self._discard_lost(group)
        self._form(group)

    def fresh(self) -> "RankPool":
        """Return a pool with processes of its own, which shares launcher, store and counts; close it before this."""
        return replace(self, prepares_groups=False)

    def close(self) -> None:
        """Let every rank finish its fixtures and end."""
        self._take_prepared(None)
        self._end_processes()
        if "_recorder" in vars(self):
            self._recorder.close()
            del self._recorder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_prepared(self, world: World | None) -> RankGroup | None:
        """Wait for the prepared group; return it if all ranks have joined it and it is one of this world."""
        group, self._prepared = self._prepared, None
        if group is None:
            return None
        failed = failures(group.join())
        self._discard_lost(group)
        usable = not failed and group.world == world and all(process.is_idle() for process in group.processes)
        return group if usable else None

    def _taken_over(self, world: World) -> RankGroup | None:
        """Return a fresh group with the connections of the last one, if that has settled and was of this world."""
        settled, self._settled = self._settled, None
        if settled is None or settled.world != world or not all(process.is_idle() for process in settled.processes):
            return None
        group, self.latest_group = self._new_group(world), self.rendezvous.new_group()
        group.take_over(self.latest_group, settled)
        return group

    def _new_group(self, world: World) -> RankGroup:
        return RankGroup(world, "", [], self.launcher, self._recorder, self.grace, timeout_margin=self.timeout_margin)

    @cached_property
    def _recorder(self) -> IO[bytes]:
        return memory_file()

    def _form(self, group: RankGroup) -> None:
        """Start the ranks that are missing and let all of them join `group`.

        Ranks that cannot join are replaced once: an earlier run may have taken their descriptors, memory or threads.
        """
        while True:
            launched = self._launch_missing(group.world.processes)
            self._start_joining(group, [self._processes[rank] for rank in range(group.world.processes)])
            outcomes = group.join()
            if not failures(outcomes):
                return
            self._discard_lost(group)
            for process in group.processes:
                self._discard(process)
            if launched == group.world.processes:
                raise LaunchError(f"the ranks could not form a process group:\n{RankFailure(outcomes, group.world)}")

    def _start_joining(self, group: RankGroup, processes: list[RankProcess]) -> None:
        self._settled = None
        self.latest_group = self.rendezvous.new_group()
        group.assign(self.latest_group, processes)
        group.start_joining()

    def _launch_missing(self, size: int) -> int:
        """Replace ranks that died between runs and start those that are missing below `size`; return how many."""
        for process in [process for process in self._processes.values() if not process.is_idle()]:
            self._discard(process)
        if any(rank not in self._processes for rank in range(self.ranks_with_fixtures)):
            self._end_processes()
        launched = [self._launch(rank) for rank in range(size) if rank not in self._processes]
        for process in launched:
            self._await_ready(process)
        return len(launched)

    def _launch(self, rank: int) -> RankProcess:
        make_room(self._recorder.fileno(), rank + 1)
        shared = SharedFiles.make(rank, self._recorder)
        try:
            process = self._new_process(rank, shared)
        except BaseException:  # LaunchError, or an interruption
            shared.close()
            raise
        self._processes[rank] = process
        self.counts["started"] += 1
        launch = Launch(
            rank=rank,
            sys_path=sys.path,
            cwd=os.getcwd() if self.cwd is None else self.cwd,  # noqa: PTH109  sent as a plain string
            env=self._environment(rank),
            store=self.rendezvous.address,
            capture=self.capture,
            host=self.host,
            body=self.host_body,
        )
        process.send(launch)
        return process

    def _new_process(self, rank: int, shared: SharedFiles) -> RankProcess:
        return RankProcess(rank, self.launcher.start(shared), shared)

    def _environment(self, rank: int) -> dict[str, str]:  # noqa: ARG002  the same for all ranks of one machine
        return dict(os.environ if self.environment is None else self.environment)

    def _await_ready(self, process: RankProcess) -> None:
        messages = process.receive(_START_SECONDS)
        answer = messages[0] if messages else None
        if isinstance(answer, Answer) and answer.outcome == "returned":
            return
        output = process.output.text
        self._discard(process)
        if messages is None:
            why = f"its process ended with exit code {self.launcher.exit_code(process.pid)}"
        elif isinstance(answer, Answer):
            why = answer.traceback
        else:
            why = f"it was not ready within {_START_SECONDS:g} s"
        raise LaunchError(f"rank {process.rank} could not start: {why}\n{output}".rstrip())

    def _end_processes(self) -> None:
        """Let every rank finish its fixtures and end; kill those that still run after `_CLOSE_SECONDS`."""
        for process in self._processes.values():
            process.reset()
            process.send(Close())
        end = time.monotonic() + _CLOSE_SECONDS
        for process in list(self._processes.values()):
            while messages := process.receive(end - time.monotonic()):
                pass
            text = process.output.text + ("" if messages is None else _NOT_ENDED.format(_CLOSE_SECONDS))
            if text:
                self.exit_output[process.rank] = self.exit_output.get(process.rank, "") + text
            self._discard(process)
        self.latest_group, self.ranks_with_fixtures = "", 0

    def _discard_lost(self, group: RankGroup) -> None:
        while group.lost_processes:
            self._discard(group.lost_processes.pop())

    def _discard(self, process: RankProcess) -> None:
        self._settled = None
        process.kill()
        process.shared.close()
        self._processes.pop(process.rank, None)
