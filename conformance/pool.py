"""Ranks for grading: a fork server that has this package imported, and fresh processes for each submission.

Importing this starts no torch, so that the server can import it while the controller does the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_ddp.launcher import PRELOAD, ForkLauncher
from pytest_ddp.ranks import Ranks

_GRACE_SECONDS = 0.3
_OURS = ("conformance.training", "conformance.probe")


@contextmanager
def fork_server() -> Iterator[ForkLauncher]:
    """Give a fork server that is starting; end it, and every rank that came from it, at last."""
    launcher = ForkLauncher((*PRELOAD, *_OURS))
    launcher.begin()
    try:
        yield launcher
    finally:
        launcher.close()


def ranks_from(launcher: ForkLauncher) -> Ranks:
    """Return ranks for one submission; they must serve no other."""
    return Ranks(launcher, grace=_GRACE_SECONDS)
