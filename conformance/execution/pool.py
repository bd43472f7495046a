"""Ranks for grading: fork servers that have this package imported, and fresh processes for each submission.

Importing this starts no torch, so that the servers can import it while the controller does the same.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.execution.fork_servers import ForkServers
from conformance.execution.rank_pools import SizedRanks
from pytest_ddp.protocol.targets import PRELOAD

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

    A grading makes much garbage: whoever collects it need not look through all of torch each time.
    """
    gc.collect()
    gc.freeze()
    try:
        with SizedRanks(launcher) as ranks:
            yield ranks
    finally:
        gc.unfreeze()
