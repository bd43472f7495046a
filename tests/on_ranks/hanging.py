"""Ranks are ended where a test wants them: on a busy machine their deadline may come before they have got there."""

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import psutil
import pytest

from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.rank_process import RankProcess

HANGING = "hanging"  # what a rank prints, and flushes, just before it hangs
_LOOK_SECONDS = 0.01


@contextmanager
def ended_when(there: Callable[[list[RankProcess]], bool]) -> Iterator[None]:
    """Let ranks that still run be ended when their time is over and they are there too, however late that is."""
    is_over = Deadline.is_over

    def is_over_there(deadline: Deadline, pending: Collection[RankProcess]) -> bool:
        if not is_over(deadline, pending):
            return False
        if not deadline.grace or there(list(pending)):  # without a grace, ranks join their group
            return True
        time.sleep(_LOOK_SECONDS)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "is_over", is_over_there)
        yield


def hangs(rank: RankProcess) -> bool:
    """Whether a rank has said that it hangs, and does."""
    return HANGING in rank.output and _sleeps(rank)


def waits(rank: RankProcess, collective: int) -> bool:
    """Whether a rank waits in its collective of this number."""
    return rank.collectives_entered == collective and _sleeps(rank)


def _sleeps(rank: RankProcess) -> bool:
    """Whether a rank is past our own code, which takes down what it enters; only Linux tells."""
    return sys.platform != "linux" or rank._status() == psutil.STATUS_SLEEPING
