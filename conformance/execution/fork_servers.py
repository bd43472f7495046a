"""Ranks for grading, forked from two servers in turn: ranks of one world hash texts apart, as torchrun's do.

Each interpreter draws a seed for `hash` when it starts. Ranks forked from one server share its seed: a set of names has
the same order on all of them, so code that takes its buckets from a set, or deals by `hash(name)`, would seem right.
A small grade accepts that: its one server comes from the judge, and torch is in memory once.

Both servers of a submission live in its sandbox. Two zygotes, which all submissions share, fork them there.
"""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path

import psutil

from conformance.execution.rank_pools import SizedRanks
from conformance.sandbox.attempts import Sandboxes
from conformance.sandbox.plan import Isolation
from conformance.sandbox.sandbox import Sandbox, SandboxLauncher
from conformance.sandbox.view import NEW, module_files
from conformance.sandbox.zygotes import Zygote, is_forkable
from conformance.submissions.location import Location
from pytest_ddp.pool.launcher import EXIT_SECONDS, Launcher
from pytest_ddp.protocol.shared_files import SharedFiles
from pytest_ddp.protocol.targets import PRELOAD

# Constant, so that a grading can be repeated. Of the pairs below 60, the one for which names of layers differ most in
# the order of their sets and in which rank they are dealt to.
HASH_SEEDS = ("14", "30")
_EMPTY_SECONDS = 60.0  # the end of a thousand processes takes a while

_COMPONENTS = Path(__file__).parents[1] / "components"
_ON_RANKS = [
    f"conformance.components.{path.parent.name}.on_ranks" for path in sorted(_COMPONENTS.glob("*/on_ranks.py"))
]
_OURS = ("conformance.ranks.train", "conformance.ranks.probe", *_ON_RANKS)


@dataclass
class RankServers:
    """The two fork servers of one submission: one for ranks of even places, one for those of odd ones."""

    sandbox: Sandbox
    servers: Sequence[SandboxLauncher]
    _server_of: dict[int, SandboxLauncher] = field(default_factory=dict)

    @property
    def alike(self) -> Launcher:
        """What starts ranks that all hash alike."""
        return self.servers[0]

    def start(self, shared: SharedFiles) -> int:
        """Fork one rank from the server of its place, also where it replaces another."""
        server = self.servers[shared.rank % len(self.servers)]
        pid = server.start(shared)
        self._server_of[pid] = server
        return pid

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Ask the server that has forked the rank how it ended."""
        server = self._server_of.get(pid)
        return None if server is None else server.exit_code(pid, seconds)

    def wait_until_empty(self) -> None:
        """Wait until all processes that ranks have left behind have ended, once no rank is left."""
        for server in self.servers:
            psutil.wait_procs(server.descendants(), _EMPTY_SECONDS)

    def close(self) -> None:
        """End both servers, and every rank that is left."""
        for server in self.servers:
            server.close()


@dataclass
class ForkServers:
    """Two zygotes with different hash seeds, from which each submission gets fork servers of its own.

    Attributes:
        isolation: whether submissions have sandboxes.
        small: whether memory is scarce: then there is one zygote, and ranks hash texts alike.
    """

    isolation: Isolation = "none"
    small: bool = False
    _zygotes: tuple[Zygote, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._zygotes = tuple(Zygote((*PRELOAD, *_OURS), seed) for seed in HASH_SEEDS[: 1 if self.small else None])

    def begin(self) -> None:
        """Start the zygotes; do not wait for their imports.

        One that is forked from here shares torch, and has nothing of the judge: this must not be imported yet.
        """
        first, *others = self._zygotes
        for zygote in others:
            zygote.begin()
        if forked := is_forkable(first.hash_seed):
            for module in PRELOAD:
                import_module(module)
            gc.freeze()  # a collection writes to every object, and would leave judge and zygote little to share
        first.begin(forked=forked)

    @cached_property
    def _sandboxes(self) -> Sandboxes:
        return Sandboxes(self.isolation, self._zygotes)

    @contextmanager
    def serving(self, location: Location | None = None) -> Iterator[RankServers]:
        """Give fork servers for one submission, in a sandbox of its own.

        Raises:
            UsageError: a sandbox is required, and this machine refuses it.
            LaunchError: no processes can be started.
        """
        with self._sandboxes.servers(own_files(location) if location else ()) as (sandbox, servers):
            yield RankServers(sandbox, servers)

    def connected(self) -> "ForkServers":
        """Return the same zygotes with connections of their own, for a fork; raise OSError if one has ended."""
        found = ForkServers(small=self.small)
        found._zygotes = tuple(zygote.connected() for zygote in self._zygotes)
        return found

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the connections to the zygotes."""
        return [zygote.descriptor for zygote in self._zygotes]

    def close(self) -> None:
        """End the zygotes, or the connections to them."""
        for zygote in self._zygotes:
            zygote.close()


def own_files(location: Location) -> tuple[str, ...]:
    """Return the files and folders that a submission consists of."""
    if location.file is not None and (location.is_file_alone or _holds_more(location.root)):
        return (location.file,)
    if location.root is not None:
        return (location.root, *location.import_roots)
    return tuple(module_files(location.module.partition(".")[0], location.import_roots))


def _holds_more(root: str | None) -> bool:
    """Whether a folder is the user's home, holds it, or is one that a sandbox has of its own: it is not shown."""
    return root in NEW or Path(os.path.realpath(os.path.expanduser("~"))).is_relative_to(root or "")  # noqa: PTH111  there may be no home


_ahead: list[ForkServers] = []


def begin_ahead(*, small: bool = False) -> None:
    """Begin to start what `fork_servers` gives next."""
    servers = ForkServers(small=small)
    servers.begin()
    _ahead.append(servers)


def give_next(servers: ForkServers) -> None:
    """Let `fork_servers` give these, which have begun."""
    _ahead[:] = [servers]


@contextmanager
def fork_servers(isolation: Isolation = "none", *, small: bool = False) -> Iterator[ForkServers]:
    """Give what starts ranks; it is starting, or has begun already. End it at last, with every rank.

    A `small` grade has one server.
    """
    if not _ahead:
        begin_ahead(small=small)
    servers = _ahead.pop()
    servers.isolation = isolation
    try:
        yield servers
    finally:
        servers.close()
        gc.unfreeze()  # triton reports at exit all that was not collected as leaked


@contextmanager
def ranks_from(launcher: ForkServers, location: Location | None = None) -> Iterator[SizedRanks]:
    """Give ranks for one submission; they must serve no other.

    A grade makes much garbage; `gc.freeze` keeps the collector from looking through torch's objects each time.
    """
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        with (
            launcher.serving(location) as servers,
            SizedRanks(servers, servers.sandbox, one_size=launcher.small) as ranks,
        ):
            yield ranks
    finally:
        if not frozen:  # else it was `begin` that froze what torch is made of
            gc.unfreeze()
