"""Ends ranks only when they have come to the point that a test needs: a busy machine may be slower than a deadline."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.rank_process import RankProcess

HANGING = "hanging"  # a rank prints and flushes this just before it hangs
_LOOK_SECONDS = 0.01


@contextmanager
def ended_when(there: Callable[[list[RankProcess]], bool]) -> Iterator[None]:
    """End ranks only when their time is over and `there` is true for the ranks that still run."""
    is_over = Deadline.is_over

    def is_over_there(deadline: Deadline) -> bool:
        if not is_over(deadline):
            return False
        if not deadline.grace or there(list(deadline.pending)):  # without a grace, ranks join their group
            return True
        time.sleep(_LOOK_SECONDS)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "is_over", is_over_there)
        yield


def hangs(rank: RankProcess) -> bool:
    """Whether a rank has printed that it hangs, and sleeps."""
    return HANGING in rank.output.text and _sleeps(rank)


def waits(rank: RankProcess, collective: int) -> bool:
    """Whether a rank waits in its collective of this number."""
    return rank.collectives_entered == collective and _sleeps(rank)


def _sleeps(rank: RankProcess) -> bool:
    """Whether a rank sleeps, and so has left our own code, which records what it enters; True without /proc."""
    return sys.platform != "linux" or rank.status == psutil.STATUS_SLEEPING
