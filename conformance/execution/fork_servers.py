"""Ranks for grading, forked from two servers in turn: ranks of one world hash texts apart, as torchrun's do.

Each interpreter draws a seed for `hash` when it starts. Ranks forked from one server share its seed: a set of names has
the same order on all of them, so code that takes its buckets from a set, or deals by `hash(name)`, would seem right.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conformance.execution.rank_pools import SizedRanks
from pytest_ddp.pool.launcher import EXIT_SECONDS, ForkLauncher, Launcher
from pytest_ddp.protocol.shared_files import SharedFiles
from pytest_ddp.protocol.targets import PRELOAD

# Constant, so that a grading can be repeated. Of the pairs below 60, the one for which names of layers differ most in
# the order of their sets and in which rank they are dealt to.
HASH_SEEDS = ("14", "30")


@dataclass
class ForkServers:
    """Two fork servers with different hash seeds: one for ranks of even places, one for those of odd ones.

    Attributes:
        preload: modules that both import.
    """

    preload: Sequence[str]
    _servers: tuple[ForkLauncher, ...] = field(init=False)
    _server_of: dict[int, ForkLauncher] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._servers = tuple(ForkLauncher(self.preload, {"PYTHONHASHSEED": seed}) for seed in HASH_SEEDS)

    @property
    def alike(self) -> Launcher:
        """What starts ranks that all hash alike."""
        return self._servers[0]

    def begin(self) -> None:
        """Start both servers, if they do not run yet, without waiting for their imports."""
        for server in self._servers:
            server.start_server()

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
        """End both servers, and every rank that is left."""
        for server in self._servers:
            server.close()


_COMPONENTS = Path(__file__).parents[1] / "components"
_ON_RANKS = [
    f"conformance.components.{path.parent.name}.on_ranks" for path in sorted(_COMPONENTS.glob("*/on_ranks.py"))
]
_OURS = ("conformance.ranks.train", "conformance.ranks.probe", *_ON_RANKS)


@contextmanager
def fork_servers() -> Iterator[ForkServers]:
    """Give fork servers that are starting; end them, and every rank that came from them, at last."""
    launcher = ForkServers((*PRELOAD, *_OURS))
    launcher.begin()
    try:
        yield launcher
    finally:
        launcher.close()


@contextmanager
def ranks_from(launcher: ForkServers) -> Iterator[SizedRanks]:
    """Give ranks for one submission; they must serve no other.

    A grade makes much garbage; `gc.freeze` keeps the collector from looking through torch's objects each time.
    """
    gc.collect()
    gc.freeze()
    try:
        with SizedRanks(launcher) as ranks:
            yield ranks
    finally:
        gc.unfreeze()
