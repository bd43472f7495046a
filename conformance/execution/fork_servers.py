"""Ranks for grading, forked from two servers in turn: ranks of one world hash texts apart, as torchrun's do.

Each interpreter draws a seed for `hash` when it starts. Ranks forked from one server share its seed: a set of names has
the same order on all of them, so code that takes its buckets from a set, or deals by `hash(name)`, would seem right.
A small grade accepts that: its one server is forked from the judge, and torch is in memory once.
"""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from conformance.execution.rank_pools import SizedRanks
from pytest_ddp.pool import fork_server
from pytest_ddp.pool.launcher import EXIT_SECONDS, ONE_THREAD, ForkLauncher, Launcher, Server
from pytest_ddp.protocol.shared_files import SharedFiles
from pytest_ddp.protocol.targets import PRELOAD

# Constant, so that a grading can be repeated. Of the pairs below 60, the one for which names of layers differ most in
# the order of their sets and in which rank they are dealt to.
HASH_SEEDS = ("14", "30")
_HASH_SEED = "PYTHONHASHSEED"
# Large tensors get memory that goes back to the system with them; glibc would soon take it from its heap.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}


def become_forkable() -> None:
    """Execute this program again as an interpreter that can become the first server, unless it is one already."""
    wanted = {**ONE_THREAD, **_MALLOC, _HASH_SEED: HASH_SEEDS[0]}
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)  # noqa: S606  itself


@dataclass(frozen=True)
class _ForkedServer:
    """A fork server that was forked from this process."""

    pid: int
    _descriptor: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        ended, _, _ = select.select([self._descriptor], [], [], timeout)
        if not ended:
            raise subprocess.TimeoutExpired("fork server", timeout or 0)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass
class _ForkingLauncher(ForkLauncher):
    """Forks its server from this process, if the hash seed is the same: they share the memory of what both import.

    Threads that Python does not know might hold locks, which a fork copies: then it starts an interpreter.
    """

    def begin_server(self, fd: int, preload: Sequence[str], environment: Mapping[str, str]) -> Server:
        if not _is_forkable():
            return super().begin_server(fd, preload, environment)
        pid = _fork_server(fd, preload)
        return _ForkedServer(pid, os.pidfd_open(pid))


def _is_forkable() -> bool:
    """Whether a server forked from this process is as good as a fresh interpreter."""
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    return os.environ.get(_HASH_SEED) == HASH_SEEDS[0] and threads == threading.active_count()


def _fork_server(fd: int, preload: Sequence[str]) -> int:
    """Fork a server that serves the socket `fd`; return its process id. Nothing of the grade is left open in it."""
    controller = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, fd)
        os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
        sys.argv, sys.stdout, sys.stderr = ["-c"], sys.__stdout__, sys.__stderr__
        fork_server.main(fd, controller, preload)
    finally:
        os._exit(1)


@dataclass
class ForkServers:
    """Two fork servers with different hash seeds: one for ranks of even places, one for those of odd ones.

    Attributes:
        preload: modules that both import.
        small: whether memory is scarce: then one server starts all ranks, which hash texts alike.
    """

    preload: Sequence[str]
    small: bool = False
    _servers: tuple[ForkLauncher, ...] = field(init=False)
    _server_of: dict[int, ForkLauncher] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, second = ({_HASH_SEED: seed} for seed in HASH_SEEDS)
        others = () if self.small else (ForkLauncher(self.preload, second),)
        self._servers = (_ForkingLauncher(self.preload, first), *others)

    @property
    def alike(self) -> Launcher:
        """What starts ranks that all hash alike."""
        return self._servers[0]

    def begin(self) -> None:
        """Start the servers; do not wait for their imports.

        One that is forked from here shares torch, and has nothing of the judge: this must not be imported yet.
        """
        first, *others = self._servers
        for server in others:
            server.start_server()
        if _is_forkable():
            for module in PRELOAD:
                import_module(module)
            gc.freeze()  # a collection writes to every object, and would leave judge and server little to share
        first.start_server()

    def start(self, shared: SharedFiles) -> int:
        """Fork one rank from the server of its place, also where it replaces another."""
        server = self._servers[shared.rank % len(self._servers)]
        pid = server.start(shared)
        self._server_of[pid] = server
        return pid

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Ask the server that has forked the rank how it ended."""
        server = self._server_of.get(pid)
        return None if server is None else server.exit_code(pid, seconds)

    def close(self) -> None:
        """End the servers, and every rank that is left."""
        for server in self._servers:
            server.close()


_COMPONENTS = Path(__file__).parents[1] / "components"
_ON_RANKS = [
    f"conformance.components.{path.parent.name}.on_ranks" for path in sorted(_COMPONENTS.glob("*/on_ranks.py"))
]
_OURS = ("conformance.ranks.train", "conformance.ranks.probe", *_ON_RANKS)


@contextmanager
def fork_servers(*, small: bool = False) -> Iterator[ForkServers]:
    """Give fork servers that are starting; end them, and every rank that came from them, at last.

    A `small` grade has one server.
    """
    launcher = ForkServers((*PRELOAD, *_OURS), small)
    launcher.begin()
    try:
        yield launcher
    finally:
        launcher.close()
        gc.unfreeze()  # triton reports at exit all that was not collected as leaked


@contextmanager
def ranks_from(launcher: ForkServers) -> Iterator[SizedRanks]:
    """Give ranks for one submission; they must serve no other.

    A grade makes much garbage; `gc.freeze` keeps the collector from looking through torch's objects each time.
    """
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        with SizedRanks(launcher, one_size=launcher.small) as ranks:
            yield ranks
    finally:
        if not frozen:  # else it was `begin` that froze what torch is made of
            gc.unfreeze()
